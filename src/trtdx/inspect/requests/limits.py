"""The limits that requests meet, and what happens to a request that is over one.

Read in the C++ executor (`TrtGptModel`, `LlmRequest::validate`, `MicroBatchScheduler`), in `ModelRunner` and in
`LLM._check_arguments` at v1.2.1.
"""

from __future__ import annotations

import shlex
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from trtdx.inspect.agreements.serving import served_engine, serving_artifacts
from trtdx.inspect.profiles.engine_profiles import why_not_derived
from trtdx.inspect.profiles.engine_settings import derivable_settings
from trtdx.inspect.rebuild.build_command import build_command, raised_flags
from trtdx.inspect.requests.request_shapes import RequestChecker, misfit_words
from trtdx.inspect.requests.requests import requests_of_artifacts
from trtdx.model import Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.inspect.profiles.engine_settings import EngineSettings
    from trtdx.inspect.requests.requests import Request
    from trtdx.knowledge.violation import Violation

Subject = TypeVar("Subject")
MAX_MISFITS = 4  # inputs named as further evidence


class LimitExcess(NamedTuple):
    """The requests that are over a limit: the worst of them, how many, and of how many."""

    worst: Request
    over: int
    total: int

    @property
    def count_words(self) -> str:
        """Return how many they are, in words that end a message; nothing for a single request."""
        return f" ({self.over} of {self.total} requests)" if self.total > 1 else ""

    @property
    def evidence(self) -> Evidence:
        """Return the request that is worst."""
        return Evidence(self.worst.where or "request", self.worst.words)


class EngineLoad(NamedTuple):
    """An engine, what its runtime is told, and the requests it is to take."""

    engine: Artifact
    settings: EngineSettings
    requests: list[Request]
    chunked: bool | None  # None: nobody says whether prompts are cut into chunks
    servers: tuple[Artifact, ...]

    def requests_over(self, excess: Callable[[Request], int]) -> LimitExcess | None:
        return requests_over_limit(self.requests, excess)

    def request_values(self, excess: LimitExcess, raised: dict[str, int]) -> dict[str, object]:
        """Return what every finding about a request says: which one, and how to build an engine that takes it."""
        values: dict[str, object] = {
            "words": excess.worst.words,
            "folder": shlex.quote(self.engine.path.rstrip("/") or "/"),
        }
        if self.exceeded_positions(raised):
            return values  # an engine that is longer than the model's positions answers nonsense: DX809
        return values | {
            "flags": raised_flags(self.engine, raised),
            "rebuild": build_command(self.engine, raised=raised),
        }

    def evidence(self, worst: Request, facts: tuple[str, ...], *dims: str) -> tuple[Evidence, ...]:
        """Return the request, where the limits are stated, and the inputs whose shape does not fit."""
        request_evidence = Evidence(worst.where or "request", worst.words)
        stated = tuple(name for name in facts if self.engine.has(name))
        return (request_evidence, *self.engine.evidence(*stated), *self._misfit_evidence(worst, dims))

    def exceeded_positions(self, raised: dict[str, int]) -> int | None:
        """Return how many positions the model has, where limits would go beyond them."""
        from trtdx.inspect.agreements.model.positions import has_unbounded_positions, position_limit

        limit = None if has_unbounded_positions(self.engine) else position_limit(self.engine)
        return limit if limit is not None and raised.get("max_seq_len", 0) > limit else None

    def _misfit_evidence(self, worst: Request, dims: tuple[str, ...]) -> Iterator[Evidence]:
        if not (self.engine.profiles or not why_not_derived(self.engine)):
            return
        checker = RequestChecker(self.engine, chunked=bool(self.chunked))
        evidence_by_tensor: dict[str, Evidence] = {}
        for fit in checker.misfitting_inputs(worst):
            wrong = [axis for axis in fit.misfit_axes if fit.axes[axis].name in dims]
            if wrong and fit.tensor not in evidence_by_tensor and len(evidence_by_tensor) < MAX_MISFITS:
                where = f"{self.engine.path}: {fit.tensor} in the step {fit.step!r}"
                evidence_by_tensor[fit.tensor] = Evidence(where, misfit_words(fit, wrong[0]))
        yield from evidence_by_tensor.values()


def requests_over_limit(requests: list[Request], excess: Callable[[Request], int]) -> LimitExcess | None:
    """Return the requests for which something is over its limit, or None where none is."""
    wrong = [(excess(request), request) for request in requests]
    wrong = [pair for pair in wrong if pair[0] > 0]
    if not wrong:
        return None
    worst = max(wrong, key=lambda pair: pair[0])[1]
    return LimitExcess(worst, sum(request.count for _, request in wrong), sum(request.count for request in requests))


def engine_loads(deployment: Deployment) -> Iterator[EngineLoad]:
    """Yield each engine whose limits are known, with the requests."""
    requests = list(requests_of_artifacts(deployment.of_kinds("request")))
    for engine in deployment.of_kinds("engine") if requests else ():
        settings = derivable_settings(engine)
        if settings:
            running = tuple(
                server for server in serving_artifacts(deployment) if served_engine(deployment, server) is engine
            )
            yield EngineLoad(engine, settings, requests, _is_chunked(running), running)


def check_each_engine(
    check: Callable[[EngineLoad], Iterator[Violation]],
) -> Callable[[Deployment], Iterator[Violation]]:
    """Make a check of one engine and its requests a check of a deployment."""
    return _check_each(engine_loads, check)


def _check_each(
    subjects: Callable[[Deployment], Iterator[Subject]], check: Callable[[Subject], Iterator[Violation]]
) -> Callable[[Deployment], Iterator[Violation]]:
    @wraps(check)
    def checked(deployment: Deployment) -> Iterator[Violation]:
        for subject in subjects(deployment):
            yield from check(subject)

    return checked


def _is_chunked(servers: tuple[Artifact, ...]) -> bool | None:
    stated = [server.get("runtime.chunked_context") for server in servers if server.has("runtime.chunked_context")]
    return bool(any(stated)) if stated else None


def prompt_limit(load: EngineLoad) -> tuple[int, str]:
    """Return the longest prompt an engine takes, and the setting that says so.

    The C++ executor ignores max_input_len where prompts are packed and attention is fused (since 0.11); an
    unchunked prompt must then fit into one step.
    """
    s = load.settings
    if not (s.supports_inflight and s.since(0, 11) and load.engine.get("plugin.context_fmha", True)):
        return s.max_input_len, "max_input_len"
    if load.chunked or s.max_num_tokens >= s.max_seq_len - 1:
        return s.max_seq_len - 1, "max_seq_len"
    return s.max_num_tokens, "max_num_tokens"


def chunked_prompt_limit(load: EngineLoad) -> int:
    """Return the longest prompt that chunked context would take: with it a prompt is bounded by max_seq_len."""
    return load.settings.max_seq_len - 1


def can_chunk(engine: Artifact) -> bool:
    """Return whether the engine was built so that the runtime may cut prompts into chunks."""
    return bool(engine.get("plugin.use_paged_context_fmha")) and bool(engine.get("plugin.context_fmha", True))


def reserved_drafts(settings: EngineSettings, request: Request) -> int:
    """Return the draft tokens the executor keeps room for after prompt and answer."""
    return request.draft_len or settings.max_draft_len * settings.speculative


class PytorchServer(NamedTuple):
    """A server of the PyTorch backend: what it was started with, and the requests it is to take."""

    options: Artifact
    requests: list[Request]

    def requests_over(self, excess: Callable[[Request], int]) -> LimitExcess | None:
        return requests_over_limit(self.requests, excess)

    def evidence(self, worst: Request, *facts: str) -> tuple[Evidence, ...]:
        request_evidence = Evidence(worst.where or "request", worst.words)
        return (request_evidence, *self.options.evidence(*(name for name in facts if self.options.has(name))))


def pytorch_servers(deployment: Deployment) -> Iterator[PytorchServer]:
    """Yield servers of the PyTorch backend; where one runs an engine, that one's limits are what counts."""
    requests = list(requests_of_artifacts(deployment.of_kinds("request")))
    for options in serving_artifacts(deployment, "llm-args", "command") if requests else ():
        by_pytorch = options.text("runtime.backend") in ("", "pytorch", "_autodeploy")
        if by_pytorch and served_engine(deployment, options) is None:
            yield PytorchServer(options, requests)


def check_each_server(
    check: Callable[[PytorchServer], Iterator[Violation]],
) -> Callable[[Deployment], Iterator[Violation]]:
    """Make a check of one server of the PyTorch backend and its requests a check of a deployment."""
    return _check_each(pytorch_servers, check)


def are_prompts_chunked(options: Artifact) -> bool:
    """Return whether a server cuts long prompts into chunks; trtllm-bench does unless it is told not to."""
    usual = options.text("runtime.command").startswith("trtllm-bench")
    return bool(options.get("runtime.chunked_context", usual))
