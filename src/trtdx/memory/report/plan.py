"""A plan as a report: one sentence, the ledger of the tightest rank, what to change first, and the same as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec.structs import replace

from trtdx.inspect.readers.server.command_text import fold_command
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.ledger.build_memory import render_build_note
from trtdx.memory.ledger.capacity import (
    bytes_beside_cache,
    count_caches,
    count_requests,
    fits_narrowly,
    largest_beside_weights,
    least_sequences_held,
    limiting_component,
    sequence_bytes,
    typical_request_length,
)
from trtdx.memory.ledger.frontier import FrontierPoint
from trtdx.memory.ledger.weight_storage import is_known_format
from trtdx.memory.nouns import COMPONENTS, ZERO_FIGURE, RankLedger
from trtdx.memory.report.figures import (
    render_band,
    render_count,
    render_formats,
    render_gib,
    render_gib_cell,
    render_gpus,
    render_layout,
)
from trtdx.model import Evidence, Finding, Fix, Report, Section, Stage
from trtdx.words import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.memory.advice.advice import Advice
    from trtdx.memory.advice.commands import AdvisedCommands
    from trtdx.memory.nouns import Figure, MemoryLedger, Setup
    from trtdx.pictures import Picture
    from trtdx.rule import RuleBook

TOLD_LENGTHS = (1024, 4096, 16384, 65536)
LLM_API_NAMES = {"free_fraction": "free_gpu_memory_fraction"}  # where TensorRT-LLM calls it otherwise


class MemoryReport(Report, frozen=True, kw_only=True):
    """What `trtdx memory` answers: a report, and the plan it was made from."""

    verdict_first: ClassVar[bool] = True

    memory: dict[str, Any] | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    advice: tuple[dict[str, Any], ...] = ()
    target: dict[str, Any] | None = None

    def pictures(self) -> tuple[Picture, ...]:
        """Return the ledger of each rank as bars, and the frontier as a map with the set-up's own place in it."""
        from trtdx.memory.report.pictures import draw_frontier, draw_ledger

        pictures = (draw_ledger(self.memory), draw_frontier(self.frontier, self.memory))
        return tuple(picture for picture in pictures if picture is not None)


def render_verdict(ledger: MemoryLedger, lengths: Sequence[int] = ()) -> str:
    """Return the answer in one sentence."""
    setup, worst = ledger.setup, ledger.tightest_rank
    where = render_gpus(setup)
    if not where:
        return f"each GPU holds {render_gib(bytes_beside_cache(worst))} before its KV cache, and {_render_token_bytes(worst)} for it"
    if not ledger.fits:
        rank = f" on rank {worst.rank}" if setup.layout.world > 1 else ""
        return f"does not fit on {where}: short by {render_gib(worst.short_bytes)}{rank}; {_render_what_fills(setup, worst)}"
    length = next(iter(lengths), 0) or typical_request_length(setup)
    per_gpu = " on each" if setup.layout.world > 1 else ""
    narrow = "fits narrowly" if fits_narrowly(worst) else "fits"
    many = (
        format_count(count_requests(ledger, length), "request") if count_requests(ledger, length) else "not one request"
    )
    beams = f" with {setup.limits.max_beam_width} beams" if setup.limits.max_beam_width > 1 else ""
    cache = render_gib(worst.component_bytes("kv_pool"))
    text = f"{narrow} on {where} with {cache} of KV cache{per_gpu}: {render_cache(ledger)}, {many} of {length}{beams}"
    at_once = setup.limits.max_batch_size * setup.layout.pp * count_caches(setup)
    if at_once < count_requests(ledger, length):
        text = f"{text}, of which max_batch_size lets {at_once} run at once"
    return text + _render_length_limit(ledger)


def render_cache(ledger: MemoryLedger) -> str:
    """Return how many tokens the caches hold; with attention data parallelism each GPU has its own requests."""
    tokens, cache_total = ledger.kv_tokens.value, count_caches(ledger.setup)
    if cache_total == 1:
        return f"{render_count(tokens)} tokens"
    return f"{render_count(tokens)} tokens on each of {cache_total}, {render_count(tokens * cache_total)} together"


def _render_cache_gain(ledger: MemoryLedger) -> str:
    return f"{render_cache(ledger)} of cache" if count_caches(ledger.setup) == 1 else render_cache(ledger)


def _render_length_limit(ledger: MemoryLedger) -> str:
    """Return what a default length comes to: a request that the cache does not hold is refused, whatever the model can."""
    limits = ledger.setup.limits
    longest = ledger.kv_tokens.value // limits.max_beam_width
    if not ledger.setup.is_assumed("max_seq_len") or longest >= limits.max_seq_len:
        return ""
    return f"; none can be longer than {longest}, though max_seq_len is {limits.max_seq_len} by default"


def _render_token_bytes(rank: RankLedger) -> str:
    return f"{rank.kv_bytes_per_token.value / 1024:.1f} KiB a token"


# The components whose names are plural.
PLURAL_COMPONENTS = ("cuda_context", "weights", "draft_weights", "encoder_weights", "communication", "activation", "runtime_buffers",
        "decoder_buffers", "logits", "cuda_graphs", "kv_transfer", "other_process")  # fmt: skip


def _render_what_fills(setup: Setup, rank: RankLedger) -> str:
    """Return what takes the room, so that nobody has to look for it in the table."""
    weights = rank.component_bytes("weights")
    if weights >= rank.capacity:
        return f"weights alone are {render_gib(weights)}"
    if bytes_beside_cache(rank) >= rank.capacity:
        name = limiting_component(rank)
        if name == COMPONENTS["weights"]:
            return f"weights are {render_gib(weights)} of its {render_gib(rank.capacity)}, beside {render_gib(bytes_beside_cache(rank) - weights)} of the rest"
        largest = next((component for component in rank.components if COMPONENTS[component.name] == name), None)
        size = render_gib(largest.bytes.value) if largest else ""
        verb = "are" if largest and largest.name in PLURAL_COMPONENTS else "is"
        return f"{name} {verb} {size} beside {render_gib(weights)} of weights"
    room = rank.capacity - bytes_beside_cache(rank)
    if not setup.running.paged_kv:
        needed = render_gib(least_sequences_held(setup) * sequence_bytes(setup, rank))
        return f"{render_gib(room)} are left for a KV cache of {needed}, which is not paged"
    return f"{render_gib(room)} are left for the KV cache, at {_render_token_bytes(rank)}"


def ledger_section(ledger: MemoryLedger) -> Section:
    """Return the ledger of the tightest rank: what it holds, how sure that is, and why so much."""
    setup, worst = ledger.setup, ledger.tightest_rank
    rows = [
        (
            COMPONENTS[component.name],
            render_gib_cell(component.bytes.value),
            render_band(component.bytes),
            _render_reason(component.why, component.bytes),
        )
        for component in worst.components
        if component.bytes.value or component.name != "kv_pool"
    ]
    rows.append(
        (
            "together",
            render_gib_cell(worst.total_bytes.value),
            render_band(worst.total_bytes),
            _render_capacity(worst),
        )
    )
    world = setup.layout.world
    whose = "each GPU" if world > 1 else "the GPU"
    if _ranks_differ(ledger):
        whose = f"rank {worst.rank} of {world} (the tightest)"
    settings = ", ".join(filter(None, (render_layout(setup), render_formats(setup), setup.running.backend)))
    title = f"what {whose} holds, in GiB ({settings})"
    note = ". ".join(filter(None, (*ledger.notes, assumed_note(setup), render_build_note(ledger))))
    return Section("ledger", title, ("component", "GiB", "band", "why"), tuple(rows), note=note)


def _render_reason(words: str, figure: Figure) -> str:
    source = "" if figure.source == "formula" else figure.source
    source = re.sub(r"^measured: formula x ([\d.]+), calibrated on (.+)$", r"x \1 by your \2", source)
    text = "; ".join(filter(None, (source, words)))
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "", text)  # a line must not end inside a number


def _render_capacity(rank: RankLedger) -> str:
    if not rank.capacity:
        return ""
    free = rank.capacity - rank.total_bytes.value
    return (
        f"of {render_gib_cell(rank.capacity)}; {render_gib_cell(free)} free"
        if free >= 0
        else f"of {render_gib_cell(rank.capacity)}"
    )


def _ranks_differ(ledger: MemoryLedger) -> bool:
    return len({rank.total_bytes.value for rank in ledger.ranks}) > 1


def ranks_section(ledger: MemoryLedger) -> Iterator[Section]:
    """Yield the other ranks where they are not all alike."""
    if not _ranks_differ(ledger):
        return
    kinds: dict[tuple[int, ...], list[RankLedger]] = {}
    for rank in ledger.ranks:
        kinds.setdefault(tuple(component.bytes.value for component in rank.components), []).append(rank)
    rows = tuple(
        (
            _render_rank_span([rank.rank for rank in alike]),
            render_gib_cell(alike[0].component_bytes("weights")),
            render_gib_cell(bytes_beside_cache(alike[0]) - alike[0].component_bytes("weights")),
            render_gib_cell(alike[0].component_bytes("kv_pool")),
            render_gib_cell(alike[0].total_bytes.value),
        )
        for alike in kinds.values()
    )
    yield Section("ranks", "the ranks, in GiB", ("rank", "weights", "beside them", "KV cache", "together"), rows)


def _render_rank_span(ranks: list[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else " and ".join(map(str, ranks))


def assumed_settings(setup: Setup) -> list[str]:
    """Return what nobody said and was therefore taken to be the default."""
    values: dict[str, Any] = {
        "max_batch_size": setup.limits.max_batch_size,
        "max_num_tokens": setup.limits.max_num_tokens,
        "max_seq_len": setup.limits.max_seq_len,
        "free_fraction": setup.running.free_fraction,
        "dtype": setup.formats.dtype,
        "weights": _render_assumed_format(setup),
        "tp": setup.layout.tp,
        "backend": setup.running.backend,
        "version": setup.running.version or "the newest",
        "num_kv_heads": setup.dims.num_kv_heads,
    }
    return [
        f"{LLM_API_NAMES.get(name, name)} {value}"
        for name, value in values.items()
        if setup.said.get(name, "").startswith("default") and not (name == "tp" and value == 1)
    ]


def _render_assumed_format(setup: Setup) -> str:
    """Return what stands for a format that cannot be reckoned with as it is."""
    name = setup.formats.weights
    return f"taken for {name}" if is_known_format(name) else f"{name}, which is not known, as eight bits"


def assumed_note(setup: Setup) -> str:
    hidden = ("backend",) if setup.said.get("version", "").endswith("this model") else ("backend", "version")
    assumptions = [assumption for assumption in assumed_settings(setup) if assumption.partition(" ")[0] not in hidden]
    return f"not said, so the defaults: {', '.join(assumptions)}" if assumptions else ""


def requests_section(ledger: MemoryLedger, lengths: Sequence[int]) -> Iterator[Section]:
    """Yield how many requests of each length the cache holds at once."""
    if not ledger.fits:
        return
    longest = ledger.setup.dims.max_positions or ledger.setup.limits.max_seq_len
    shown_lengths = sorted({*lengths} or {length for length in TOLD_LENGTHS if length <= longest})
    rows = tuple((length, count_requests(ledger, length)) for length in shown_lengths)
    figure = ledger.kv_tokens
    per_gpu = " on each GPU" if count_caches(ledger.setup) > 1 else ""
    bounds = ""
    if figure.low != figure.high:
        bounds = f"; {render_count(figure.low)} to {render_count(figure.high)} tokens{per_gpu}"
    note = f"{ledger.tightest_rank.kv_bytes_per_token.value:,} bytes a token{bounds}"
    yield Section("requests", "requests at once", ("tokens each", "requests"), rows, note=note)


def advice_section(advice: Sequence[Advice], title: str = "what would give more room") -> Iterator[Section]:
    """Yield advice as a list: what it gains, what it does to speed, and how it is written."""
    if not advice:
        return
    rows: list[tuple[str, str]] = []
    for number, suggestion in enumerate(advice, 1):
        rows.append((f"{number}.", f"{suggestion.words}: {render_gain(suggestion)}; {suggestion.speed}"))
        rows += command_rows(suggestion.commands)
    yield Section("advice", title, ("", ""), tuple(rows))


def command_rows(commands: AdvisedCommands | None) -> list[tuple[str, str]]:
    """Return commands as rows of a table, each with its stage, broken where a shell lets them be broken."""
    rows: list[tuple[str, str]] = []
    for line in commands.commands if commands else ():
        rows.append(("", f"{line.stage.value}:"))
        rows += [("", f"  {part}") for part in fold_command(line.text)]
    return rows


def render_gain(advice: Advice) -> str:
    ledger = advice.ledger
    if not ledger.fits:
        return f"{render_gib(advice.gain_bytes)} less, still short by {render_gib(ledger.tightest_rank.short_bytes)}"
    tokens = _render_cache_gain(ledger)
    times = ledger.kv_tokens.value / max(advice.tokens_before, 1)
    return f"{tokens} ({times:.1f} times)" if times < 100 else tokens


def fix_with_commands(text: str, advised: AdvisedCommands | None) -> Fix:
    """Return a fix at the first stage that has to be gone through again."""
    lines = advised.commands if advised else ()
    stage = min((line.stage for line in lines), key=list(Stage).index, default=Stage.LAUNCH)
    return Fix(stage, text, "\n".join(line.text for line in lines) or None)


def fixes_from_advice(advice: Sequence[Advice]) -> tuple[Fix, ...]:
    """Return advice as fixes of a finding."""
    return tuple(
        fix_with_commands(f"{item.words}: {_outcome_in_words(item.ledger)}; {item.speed}", item.commands)
        for item in advice
    )


def _outcome_in_words(ledger: MemoryLedger) -> str:
    return (
        f"fits with {_render_cache_gain(ledger)}"
        if ledger.fits
        else f"still short by {render_gib(ledger.tightest_rank.short_bytes)}"
    )


def capacity_findings(ledger: MemoryLedger, advice: Sequence[Advice], book: RuleBook, again: str) -> Iterator[Finding]:
    """Yield the finding of a plan that does not fit, by what stands in the way."""
    if ledger.fits is not False:
        return
    setup, worst = ledger.setup, ledger.tightest_rank
    alone = worst.component_bytes("weights") >= worst.capacity
    code = "DX890" if alone else "DX891" if bytes_beside_cache(worst) >= worst.capacity else "DX893"
    values = {
        "gpu": setup.device.name if setup.device else "",
        "capacity": render_gib(worst.capacity),
        "weights": render_gib(worst.component_bytes("weights")),
        "short": render_gib(worst.short_bytes),
        "component": largest_beside_weights(worst),
        "size": render_gib(bytes_beside_cache(worst) - worst.component_bytes("weights")),
        "used": render_gib(bytes_beside_cache(worst)),
        "room": render_gib(max(worst.capacity - bytes_beside_cache(worst), 0)),
        "length": setup.limits.max_seq_len,
        "held": format_count(least_sequences_held(setup), "sequence"),
        "needed": render_gib(least_sequences_held(setup) * sequence_bytes(setup, worst)),
        "again": advice[0].commands.verify if advice and advice[0].commands else again,
    }
    evidence = tuple(
        Evidence(
            f"rank {worst.rank}: {COMPONENTS[component.name]}",
            f"{render_gib(component.bytes.value)} {component.why}".strip(),
        )
        for component in sorted(worst.components, key=lambda component: -component.bytes.value)
        if component.name != "kv_pool"
    )
    # The nearer the bands come to the limit, the less sure the verdict is.
    low = sum(component.bytes.low for component in worst.components if component.name != "kv_pool")
    confidence = 0.95 if low >= worst.capacity or code == "DX890" else 0.75
    finding = finding_from(book.get(code), Violation(evidence[:4], values, confidence=confidence))
    # The page's own commands are of another model: without advice its words are all there is to say.
    plain = tuple(replace(fix, command=None) for fix in finding.fixes)
    yield replace(finding, fixes=fixes_from_advice(advice) or plain)


def memory_json(ledger: MemoryLedger) -> dict[str, Any]:
    """Return a plan as the documented JSON."""
    return {
        "fits": ledger.fits,
        "kv_tokens": figure_json(ledger.kv_tokens),
        "ranks": [rank_json(rank) for rank in ledger.ranks],
        "assumed": [*ledger.notes, *assumed_settings(ledger.setup)],
        "setup": msgspec.to_builtins(ledger.setup),
    }


def rank_json(rank: RankLedger) -> dict[str, Any]:
    parts = {
        f"{name}_bytes": figure_json(component.bytes) for name in COMPONENTS if (component := rank.find_component(name))
    }
    for name in ("weights_bytes", "activation_bytes", "kv_pool_bytes"):
        parts.setdefault(name, figure_json(ZERO_FIGURE))
    return {
        "rank": rank.rank,
        "fits": rank.fits,
        "short_bytes": rank.short_bytes,
        "capacity_bytes": rank.capacity,
        **parts,
        "kv_bytes_per_token": figure_json(rank.kv_bytes_per_token),
        "kv_tokens": figure_json(rank.kv_tokens),
        "total_bytes": figure_json(rank.total_bytes),
    }


def figure_json(figure: Figure) -> dict[str, Any]:
    return {"value": figure.value, "low": figure.low, "high": figure.high, "source": figure.source}


def advice_json(advice: Sequence[Advice]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "change": suggestion.words,
            "gain_bytes": suggestion.gain_bytes,
            "fits": suggestion.ledger.fits,
            "kv_tokens": suggestion.ledger.kv_tokens.value,
            "harm": round(suggestion.cost, 2),
            "speed": suggestion.speed,
            **commands_json(suggestion.commands),
        }
        for suggestion in advice
    )


def commands_json(commands: AdvisedCommands | None) -> dict[str, Any]:
    """Return the commands of a change: those to run again, all of them as `--command` takes them, and the check."""
    return {
        "flags": [{"stage": line.stage.value, "text": line.text} for line in (commands.commands if commands else ())],
        "command": commands.script if commands else "",
        "verify": commands.verify if commands else "",
    }
