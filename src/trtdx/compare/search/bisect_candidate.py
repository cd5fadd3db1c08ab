"""`trtdx compare bisect`: the options of a candidate, a model or a command, and the verdict of `compare` on each set.

The reference is what it is in every run. Of ONNX Runtime, where the level of optimisation matters, the optimisers are
then told apart by name.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from trtdx.compare.align.align import align_sides
from trtdx.compare.align.mapping import read_mapping
from trtdx.compare.judge.honest_runs import ReferenceRuns
from trtdx.compare.judge.verdict import judge_pairs
from trtdx.compare.nouns import PairVerdict
from trtdx.compare.search.bisect import (
    MOST_RUNS,
    BisectOption,
    BisectResult,
    RunLog,
    RunOutcome,
    bisect_options,
)
from trtdx.compare.sides.side import SideSpec, open_side, parse_side
from trtdx.errors import InputError, TrtdxError
from trtdx.model import Report, Section, Summary
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.run import ComparisonPlan
    from trtdx.host import Host
    from trtdx.rule import RuleBook

    Told = Callable[[str], None]

MOST_SECONDS = 3600.0  # of one run of a command
COMMAND = "command:"
RESULTS = ".:*"  # and what is fed, by which tokens are told apart
OUT = "out"  # the placeholder of where a command is to write
# Optimisers of ONNX Runtime 1.31 on the CPU that change how something is computed.
OPTIMISERS = (
    "SimplifiedLayerNormFusion", "LayerNormFusionL1", "LayerNormFusionL2", "SkipLayerNormFusion", "BiasSkipLayerNormFusion",
    "EmbedLayerNormFusion", "AttentionFusion", "GroupQueryAttentionFusion", "GroupQueryAttentionPreNormFusion",
    "GeluFusionL1", "GeluFusionL2", "BiasGeluFusion", "FastGeluFusion", "QuickGeluFusion", "GeluApproximation",
    "BiasSoftmaxFusion", "MatMulAddFusion", "MatmulTransposeFusion", "MatMulScaleFusion", "MatMulActivationFusion",
    "MatMulIntegerToFloatFusion", "DynamicQuantizeMatMulFusion", "MatMulNBitsFusion", "DQMatMulNBitsFusion",
    "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion", "GemmActivationFusion", "GemmSumFusion", "GemmTransposeFusion",
    "ConvActivationFusion", "ConvAddActivationFusion", "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "DivMulFusion",
    "NchwcTransformer", "NhwcTransformer", "QDQSelectorActionTransformer", "QDQPropagationTransformer",
    "QDQS8ToU8Transformer", "QDQFinalCleanupTransformer", "Avx2WeightS8ToU8Transformer", "ClipQuantRewrite", "ReluQuantRewrite",
    "ConstantFolding", "ConstantFoldingDQ", "CommonSubexpressionElimination", "CastElimination", "CastChainElimination",
    "RemoveDuplicateCastTransformer", "NotWhereFusion", "ReshapeFusion", "TransposeOptimizer",
)  # fmt: skip


def model_options(spec: SideSpec) -> list[BisectOption]:
    """Return what can be changed about how a model is run, from what its own options say."""
    stated = spec.options
    if spec.kind == "hf":
        attention = stated.get("attention", "sdpa")
        return [
            BisectOption("attention", (attention, "eager" if attention != "eager" else "sdpa")),
            BisectOption("compiled", (stated.get("compiled", ""), "" if stated.get("compiled") else "1")),
            BisectOption("threads", (stated.get("threads", "0"), "1")),
        ]
    if spec.kind != "onnx":
        return []
    levels = ("all", "extended", "basic", "none")
    level = stated.get("level", "all")
    precise = stated.get("session.x64quantprecision", "0")
    options = [
        BisectOption("level", (level, *(other_level for other_level in _values_further(levels, level)))),
        BisectOption("session.x64quantprecision", (precise, "1" if precise != "1" else "0")),
        BisectOption("threads", (stated.get("threads", "0"), "1")),
    ]
    settings = [name for name in stated if "." in name and name != "session.x64quantprecision"]
    return options + [BisectOption(name, (stated[name], "")) for name in settings]


def _values_further(values: Sequence[str], start: str) -> list[str]:
    """Return the values on the longer side of one, the nearest first."""
    if start not in values:
        return list(values)
    at = values.index(start)
    return list(values[at + 1 :]) if at < len(values) / 2 else list(values[:at])[::-1]


def optimiser_options(spec: SideSpec) -> list[BisectOption]:
    """Return each optimiser as something that can be switched off."""
    off = spec.options.get("disabled", "").split(",")
    return [BisectOption(name, ("on", "off")) for name in OPTIMISERS if name not in off]


def parse_option(text: str) -> BisectOption:
    """Return the option that a user wrote as NAME=GIVEN,OTHER,...; a value may be empty."""
    name, equals, values = text.partition("=")
    choices = tuple(values.split(","))
    if not equals or not name or len(choices) < 2:
        raise InputError(f"{text!r} is not an option", fix="write NAME=FAILING,OTHER,... with the failing value first")
    return BisectOption(name, choices)


def spec_with_options(spec: SideSpec, options: Mapping[str, str]) -> SideSpec:
    """Return a candidate with options other than given; empty ones are left out, optimisers that are off collected."""
    off = [name for name, value in options.items() if name in OPTIMISERS and value == "off"]
    rest = {name: value for name, value in options.items() if name not in OPTIMISERS}
    merged = {**spec.options, **rest}
    if off:
        merged["disabled"] = ",".join(filter(None, (spec.options.get("disabled", ""), *off)))
    return SideSpec(spec.kind, spec.path, {name: value for name, value in merged.items() if value})


def fill_command(template: str, options: Mapping[str, str], out: str) -> list[str]:
    """Return a command with its placeholders filled in; an argument that becomes empty is left out."""
    try:
        argv = [part.format_map({**options, OUT: out}) for part in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as err:
        raise InputError(
            f"{template!r} cannot be filled in: {err}",
            fix=f"name every placeholder with --option, and {{{OUT}}}",
        ) from err
    return [part for part in argv if part]


def bisect_candidate(
    host: Host,
    plan: ComparisonPlan,
    book: RuleBook,
    *,
    options: Sequence[BisectOption] = (),
    file: str = "",
    most: int = MOST_RUNS,
    tolerance: Tolerances | None = None,
    progress: Told = lambda text: None,
) -> Report:
    """Return which options of the candidate flip the verdict of `compare`, as a report.

    Args:
        host: where commands run and files are.
        plan: what to compare; the candidate is a model, or "command:" and a template with {NAME} for each option and
            {out} for where it writes a capture or arrays.
        book: the words of findings.
        options: what may be changed; of a model, what it has where none is told.
        file: where runs are kept, to go on with later.
        most: how many runs may be made.
        tolerance: limits of the user's.
        progress: told in words what is being done.
    """
    court = _CandidateRunner(host, plan, book, tolerance, progress)
    if not options and court.spec is not None:
        options = model_options(court.spec)
    if not options:
        raise InputError(
            "there is no option to try",
            fix="name options: --option NAME=FAILING,OTHER; use onnx: or hf: or a command",
        )
    about = f"{plan.reference} against {plan.candidate}; {plan.question}"
    court.start({option.name: option.values[0] for option in options})
    log = RunLog(court, host=host, file=file, about=about, most=most)
    result = bisect_options(options, log)
    if court.spec is not None and court.spec.kind == "onnx" and "level" in result.flips and result.sure:
        inner = bisect_options(optimiser_options(court.spec), log)
        if inner.flips and not inner.problem:
            result = inner._replace(failing_values={**result.failing_values, **inner.failing_values})
        else:
            result = result._replace(runs=log.runs, tried=inner.tried)
    return bisect_report(result)


class _CandidateRunner:
    """Runs a candidate with some options and judges it: by what comes out of it, unwatched, as watching undoes fusions.

    Where that is right with the options that were given, though something inside is not, everything is watched.
    """

    def __init__(
        self, host: Host, plan: ComparisonPlan, book: RuleBook, tolerance: Tolerances | None, progress: Told
    ) -> None:
        self.host, self.plan, self.book, self.tolerance, self.progress = host, plan, book, tolerance, progress
        self.spec = None if plan.candidate.startswith(COMMAND) else parse_side(host, plan.candidate)
        self.watch_inside = False
        self._first_run: tuple[dict[str, str], RunOutcome] | None = None

    def start(self, options: dict[str, str]) -> None:
        """Run it as it was given, and see whether what comes out is wrong."""
        self.watch_inside = False
        outcome = self(options)
        if outcome.wrong is False and self.spec is not None:
            self.watch_inside = True
            outcome = self(options)
        self._first_run = options, outcome

    def __call__(self, options: dict[str, str]) -> RunOutcome:
        if self._first_run is not None and self._first_run[0] == options:
            return self._first_run[1]
        text = ", ".join(f"{name}={value}" for name, value in options.items() if value not in ("", "on"))
        self.progress(f"trying {text}")
        with tempfile.TemporaryDirectory(prefix="trtdx-bisect-") as folder:
            try:
                return self._judge_options(options, Path(folder))
            except TrtdxError as err:
                return RunOutcome(None, err.message)

    def _judge_options(self, options: dict[str, str], folder: Path) -> RunOutcome:
        if self.spec is None:
            return self._outcome_of_comparison(self._run_command(options, folder))
        changed = spec_with_options(self.spec, options)
        return (
            self._outcome_of_comparison(changed.text)
            if self.watch_inside
            else self._outcome_of_results(changed, folder)
        )

    def _outcome_of_comparison(self, candidate: str) -> RunOutcome:
        from trtdx.compare.run import compare

        plan = msgspec.structs.replace(self.plan, candidate=candidate, attribute=False, keep="", save_mapping="")
        report = compare(self.host, plan, self.book, tolerance=self.tolerance)
        wrong = report.findings[:1]
        return RunOutcome(bool(wrong), str(wrong[0].where) if wrong else report.summary.text)

    def _outcome_of_results(self, candidate: SideSpec, folder: Path) -> RunOutcome:
        """Return the verdict on what comes out of a candidate of which nothing else is watched."""
        spec, question = parse_side(self.host, self.plan.reference), self.plan.question
        reference = open_side(self.host, spec, question, folder / "reference")
        forced = reference.step_tokens() or None
        side = open_side(self.host, candidate, question, folder / "candidate", forced=forced, selector=RESULTS)
        mapping = read_mapping(self.host, self.plan.mapping) if self.plan.mapping else None
        pairs = align_sides(reference, side, mapping=mapping).pairs
        runs = ReferenceRuns(self.host, question, folder / "runs", reference, side)
        judged = judge_pairs(pairs, reference, side, runs=runs, tolerance=self.tolerance)
        if not judged:
            return RunOutcome(None, "nothing could be compared")
        wrong = next((result for result in judged if result.verdict is PairVerdict.WRONG), None)
        if wrong is not None:
            return RunOutcome(True, f"step {wrong.pair.step}, {wrong.pair.name}")
        return RunOutcome(False, f"{format_count(len(judged), 'result')} right")

    def _run_command(self, options: dict[str, str], folder: Path) -> str:
        """Run the command; return what it wrote: the path it was told, or that with an ending."""
        out = folder / "result"
        argv = fill_command(self.plan.candidate.removeprefix(COMMAND), options, str(out))
        done = self.host.run(argv, timeout_s=MOST_SECONDS)
        if done.status != 0:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise InputError(f"the command {done.problem or f'ended with status {done.status}'}: {last}")
        written = sorted(folder.glob("result*"))
        if not written:
            raise InputError(f"the command wrote nothing to {{{OUT}}}")
        return str(written[0])


def bisect_report(result: BisectResult) -> Report:
    """Return a search as a report: the verdict in a sentence, and every run."""
    flips = " and ".join(f"{name}={value or '(none)'}" for name, value in result.flips.items())
    was = ", ".join(f"{name}={result.failing_values[name] or '(none)'}" for name in result.flips)
    runs = format_count(result.runs, "run")
    if result.flips:
        more = "" if result.sure else "; fewer may do, but there were no runs left"
        text = f"with {flips} instead of {was} the candidate is right ({runs}{more})"
    else:
        text = f"{result.problem} ({runs})"
    verdicts = {True: "wrong", False: "right", None: "could not be judged"}
    rows = []
    for tried in result.tried:
        changed = [
            f"{name}={value}" for name, value in tried.options.items() if value != result.failing_values.get(name)
        ]
        rows.append((", ".join(changed) or "as given", verdicts[tried.outcome.wrong], tried.outcome.note))
    section = Section("bisect", "what was tried", ("changed", "verdict", "where or why"), tuple(rows))
    return Report(summary=Summary(text), sections=(section,))
