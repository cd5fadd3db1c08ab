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

from trtdx.compare.align.align import align
from trtdx.compare.align.mapping import read_mapping
from trtdx.compare.judge.envelope import Runs
from trtdx.compare.judge.verdict import judge
from trtdx.compare.nouns import Verdict
from trtdx.compare.search.bisect import MOST_RUNS, Bisected, Log, Option, Outcome, bisect
from trtdx.compare.sides.side import Spec, open_side, parse_side
from trtdx.errors import InputError, TrtdxError
from trtdx.model import Report, Section, Summary
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from trtdx.compare.judge.tolerance import Tolerances
    from trtdx.compare.run import Plan
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


def options_of(spec: Spec) -> list[Option]:
    """Return what can be changed about how a model is run, from what its own options say."""
    given = spec.options
    if spec.kind == "hf":
        attention = given.get("attention", "sdpa")
        return [
            Option("attention", (attention, "eager" if attention != "eager" else "sdpa")),
            Option("compiled", (given.get("compiled", ""), "" if given.get("compiled") else "1")),
            Option("threads", (given.get("threads", "0"), "1")),
        ]
    if spec.kind != "onnx":
        return []
    levels = ("all", "extended", "basic", "none")
    level = given.get("level", "all")
    precise = given.get("session.x64quantprecision", "0")
    found = [
        Option("level", (level, *(each for each in _away(levels, level)))),
        Option("session.x64quantprecision", (precise, "1" if precise != "1" else "0")),
        Option("threads", (given.get("threads", "0"), "1")),
    ]
    settings = [each for each in given if "." in each and each != "session.x64quantprecision"]
    return found + [Option(each, (given[each], "")) for each in settings]


def _away(values: Sequence[str], start: str) -> list[str]:
    """Return the other values in the order in which they lie further away from one; the longer side."""
    if start not in values:
        return list(values)
    at = values.index(start)
    return list(values[at + 1 :]) if at < len(values) / 2 else list(values[:at])[::-1]


def optimisers_of(spec: Spec) -> list[Option]:
    """Return each optimiser as something that can be switched off."""
    off = spec.options.get("disabled", "").split(",")
    return [Option(name, ("on", "off")) for name in OPTIMISERS if name not in off]


def parse_option(text: str) -> Option:
    """Return an option as a user writes it: NAME=GIVEN,OTHER,...; a value may be empty."""
    name, equals, values = text.partition("=")
    found = tuple(values.split(","))
    if not equals or not name or len(found) < 2:
        raise InputError(
            f"{text!r} is not an option", fix="write NAME=FAILING,OTHER,... with the failing value first"
        )
    return Option(name, found)


def changed_spec(spec: Spec, options: Mapping[str, str]) -> Spec:
    """Return a candidate with options other than given; empty ones are left out, optimisers that are off collected."""
    off = [name for name, value in options.items() if name in OPTIMISERS and value == "off"]
    rest = {name: value for name, value in options.items() if name not in OPTIMISERS}
    merged = {**spec.options, **rest}
    if off:
        merged["disabled"] = ",".join(filter(None, (spec.options.get("disabled", ""), *off)))
    return Spec(spec.kind, spec.path, {name: value for name, value in merged.items() if value})


def filled(template: str, options: Mapping[str, str], out: str) -> list[str]:
    """Return a command with its placeholders filled in; an argument that becomes empty is left out."""
    try:
        made = [part.format_map({**options, OUT: out}) for part in shlex.split(template)]
    except (KeyError, IndexError, ValueError) as err:
        raise InputError(
            f"{template!r} cannot be filled in: {err}",
            fix=f"name every placeholder with --option, and {{{OUT}}}",
        ) from err
    return [part for part in made if part]


def bisect_candidate(
    host: Host,
    plan: Plan,
    book: RuleBook,
    *,
    options: Sequence[Option] = (),
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
    court = _Judge(host, plan, book, tolerance, progress)
    if not options and court.spec is not None:
        options = options_of(court.spec)
    if not options:
        raise InputError(
            "there is no option to try",
            fix="name options: --option NAME=FAILING,OTHER; use onnx: or hf: or a command",
        )
    about = f"{plan.reference} against {plan.candidate}; {plan.question}"
    court.start({each.name: each.values[0] for each in options})
    log = Log(court, host=host, file=file, about=about, most=most)
    found = bisect(options, log)
    if court.spec is not None and court.spec.kind == "onnx" and "level" in found.flips and found.sure:
        inner = bisect(optimisers_of(court.spec), log)
        if inner.flips and not inner.problem:
            found = inner._replace(given={**found.given, **inner.given})
        else:
            found = found._replace(runs=log.runs, tried=inner.tried)
    return report_of(found)


class _Judge:
    """Runs a candidate with some options and judges it: by what comes out of it, unwatched, as watching undoes fusions.

    Where that is right with the options that were given, though something inside is not, everything is watched.
    """

    def __init__(
        self, host: Host, plan: Plan, book: RuleBook, tolerance: Tolerances | None, progress: Told
    ) -> None:
        self.host, self.plan, self.book, self.tolerance, self.progress = host, plan, book, tolerance, progress
        self.spec = None if plan.candidate.startswith(COMMAND) else parse_side(host, plan.candidate)
        self.inside = False
        self._first: tuple[dict[str, str], Outcome] | None = None

    def start(self, given: dict[str, str]) -> None:
        """Run it as it was given, and see whether what comes out is wrong."""
        self.inside = False
        outcome = self(given)
        if outcome.wrong is False and self.spec is not None:
            self.inside = True
            outcome = self(given)
        self._first = given, outcome

    def __call__(self, options: dict[str, str]) -> Outcome:
        if self._first is not None and self._first[0] == options:
            return self._first[1]
        told = ", ".join(f"{name}={value}" for name, value in options.items() if value not in ("", "on"))
        self.progress(f"trying {told}")
        with tempfile.TemporaryDirectory(prefix="trtdx-bisect-") as folder:
            try:
                return self._judged(options, Path(folder))
            except TrtdxError as err:
                return Outcome(None, err.message)

    def _judged(self, options: dict[str, str], folder: Path) -> Outcome:
        if self.spec is None:
            return self._compared(self._command(options, folder))
        changed = changed_spec(self.spec, options)
        return self._compared(changed.text) if self.inside else self._by_results(changed, folder)

    def _compared(self, candidate: str) -> Outcome:
        from trtdx.compare.run import compare

        plan = msgspec.structs.replace(
            self.plan, candidate=candidate, attribute=False, keep="", save_mapping=""
        )
        report = compare(self.host, plan, self.book, tolerance=self.tolerance)
        wrong = report.findings[:1]
        return Outcome(bool(wrong), str(wrong[0].where) if wrong else report.summary.text)

    def _by_results(self, candidate: Spec, folder: Path) -> Outcome:
        """Return the verdict on what comes out of a candidate of which nothing else is watched."""
        spec, question = parse_side(self.host, self.plan.reference), self.plan.question
        reference = open_side(self.host, spec, question, folder / "reference")
        forced = reference.tokens() or None
        side = open_side(
            self.host, candidate, question, folder / "candidate", forced=forced, selector=RESULTS
        )
        mapping = read_mapping(self.host, self.plan.mapping) if self.plan.mapping else None
        pairs = align(reference, side, mapping=mapping).pairs
        runs = Runs(self.host, question, folder / "runs", reference, side)
        judged = judge(pairs, reference, side, runs=runs, tolerance=self.tolerance)
        if not judged:
            return Outcome(None, "nothing could be compared")
        wrong = next((each for each in judged if each.verdict is Verdict.WRONG), None)
        if wrong is not None:
            return Outcome(True, f"step {wrong.pair.step}, {wrong.pair.name}")
        return Outcome(False, f"{counted(len(judged), 'result')} right")

    def _command(self, options: dict[str, str], folder: Path) -> str:
        """Run the command; return what it wrote: the path it was told, or that with an ending."""
        out = folder / "result"
        argv = filled(self.plan.candidate.removeprefix(COMMAND), options, str(out))
        done = self.host.run(argv, timeout_s=MOST_SECONDS)
        if done.status != 0:
            last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise InputError(f"the command {done.problem or f'ended with status {done.status}'}: {last}")
        written = sorted(folder.glob("result*"))
        if not written:
            raise InputError(f"the command wrote nothing to {{{OUT}}}")
        return str(written[0])


def report_of(found: Bisected) -> Report:
    """Return a search as a report: the verdict in a sentence, and every run."""
    told = " and ".join(f"{name}={value or '(none)'}" for name, value in found.flips.items())
    was = ", ".join(f"{name}={found.given[name] or '(none)'}" for name in found.flips)
    runs = counted(found.runs, "run")
    if found.flips:
        more = "" if found.sure else "; fewer may do, but there were no runs left"
        text = f"with {told} instead of {was} the candidate is right ({runs}{more})"
    else:
        text = f"{found.problem} ({runs})"
    rows = tuple(
        (
            ", ".join(
                f"{name}={value}" for name, value in each.options.items() if value != found.given.get(name)
            )
            or "as given",
            {True: "wrong", False: "right", None: "could not be judged"}[each.outcome.wrong],
            each.outcome.note,
        )
        for each in found.tried
    )
    section = Section("bisect", "what was tried", ("changed", "verdict", "where or why"), rows)
    return Report(summary=Summary(text), sections=(section,))
