"""A plan as a report: one sentence, the ledger of the tightest rank, what to change first, and the same as JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from trtdx.inspect.readers.server.command_text import folded
from trtdx.knowledge.violation import Violation, finding_from
from trtdx.memory.ledger.build_memory import build_note
from trtdx.memory.ledger.capacity import (
    caches,
    in_the_way,
    is_narrow,
    largest_beside,
    requests,
    sequence_bytes,
    sequences_held,
    used,
    usual_length,
)
from trtdx.memory.ledger.frontier import FrontierPoint
from trtdx.memory.ledger.plan import is_assumed
from trtdx.memory.ledger.weight_storage import known
from trtdx.memory.nouns import COMPONENTS, RankLedger
from trtdx.memory.report.figures import (
    band,
    formats_in_words,
    gib,
    in_gib,
    layout_in_words,
    on_what,
    short_count,
)
from trtdx.model import Evidence, Finding, Fix, Report, Section, Stage
from trtdx.words import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trtdx.memory.advice.advice import Advice
    from trtdx.memory.advice.commands import Advised
    from trtdx.memory.nouns import Figure, Ledger, Setup
    from trtdx.rule import RuleBook

LENGTHS = (1024, 4096, 16384, 65536)
NAMES = {"free_fraction": "free_gpu_memory_fraction"}  # where TensorRT-LLM calls it otherwise


class MemoryReport(Report, frozen=True, kw_only=True):
    """What `trtdx memory` answers: a report, and the plan it was made from."""

    verdict_first: ClassVar[bool] = True

    memory: dict[str, Any] | None = None
    frontier: tuple[FrontierPoint, ...] = ()
    advice: tuple[dict[str, Any], ...] = ()
    target: dict[str, Any] | None = None


def verdict(ledger: Ledger, lengths: Sequence[int] = ()) -> str:
    """Return the answer in one sentence."""
    setup, worst = ledger.setup, ledger.worst
    where = on_what(setup)
    if not where:
        return f"each GPU holds {gib(used(worst))} before its KV cache, and {_per_token(worst)} for it"
    if not ledger.fits:
        rank = f" on rank {worst.rank}" if setup.layout.world > 1 else ""
        return (
            f"does not fit on {where}: short by {gib(worst.short_bytes)}{rank}; {_what_fills(setup, worst)}"
        )
    length = next(iter(lengths), 0) or usual_length(setup)
    each = " on each" if setup.layout.world > 1 else ""
    narrow = "fits narrowly" if is_narrow(worst) else "fits"
    many = counted(requests(ledger, length), "request") if requests(ledger, length) else "not one request"
    beams = f" with {setup.limits.max_beam_width} beams" if setup.limits.max_beam_width > 1 else ""
    cache = gib(worst.bytes_of("kv_pool"))
    text = f"{narrow} on {where} with {cache} of KV cache{each}: {cache_in_words(ledger)}, {many} of {length}{beams}"
    at_once = setup.limits.max_batch_size * setup.layout.pp * caches(setup)
    if at_once < requests(ledger, length):
        text = f"{text}, of which max_batch_size lets {at_once} run at once"
    return text + _too_long(ledger)


def cache_in_words(ledger: Ledger) -> str:
    """Return how many tokens the caches hold; with attention data parallelism each GPU has its own requests."""
    tokens, own = ledger.kv_tokens.value, caches(ledger.setup)
    if own == 1:
        return f"{short_count(tokens)} tokens"
    return f"{short_count(tokens)} tokens on each of {own}, {short_count(tokens * own)} together"


def _cache(ledger: Ledger) -> str:
    return f"{cache_in_words(ledger)} of cache" if caches(ledger.setup) == 1 else cache_in_words(ledger)


def _too_long(ledger: Ledger) -> str:
    """Return what a default length comes to: a request that the cache does not hold is refused, whatever the model can."""
    limits = ledger.setup.limits
    longest = ledger.kv_tokens.value // limits.max_beam_width
    if not is_assumed(ledger.setup, "max_seq_len") or longest >= limits.max_seq_len:
        return ""
    return f"; none can be longer than {longest}, though max_seq_len is {limits.max_seq_len} by default"


def _per_token(rank: RankLedger) -> str:
    return f"{rank.kv_bytes_per_token.value / 1024:.1f} KiB a token"


# The components whose names are plural.
MANY = ("cuda_context", "weights", "draft_weights", "encoder_weights", "communication", "activation", "runtime_buffers",
        "decoder_buffers", "logits", "cuda_graphs", "kv_transfer", "other_process")  # fmt: skip


def _what_fills(setup: Setup, rank: RankLedger) -> str:
    """Return what takes the room, so that nobody has to look for it in the table."""
    weights = rank.bytes_of("weights")
    if weights >= rank.capacity:
        return f"weights alone are {gib(weights)}"
    if used(rank) >= rank.capacity:
        name = in_the_way(rank)
        if name == COMPONENTS["weights"]:
            return f"weights are {gib(weights)} of its {gib(rank.capacity)}, beside {gib(used(rank) - weights)} of the rest"
        largest = next((each for each in rank.components if COMPONENTS[each.name] == name), None)
        size = gib(largest.bytes.value) if largest else ""
        verb = "are" if largest and largest.name in MANY else "is"
        return f"{name} {verb} {size} beside {gib(weights)} of weights"
    room = rank.capacity - used(rank)
    if not setup.running.paged_kv:
        whole = gib(sequences_held(setup) * sequence_bytes(setup, rank))
        return f"{gib(room)} are left for a KV cache of {whole}, which is not paged"
    return f"{gib(room)} are left for the KV cache, at {_per_token(rank)}"


def ledger_section(ledger: Ledger) -> Section:
    """Return the ledger of the tightest rank: what it holds, how sure that is, and why so much."""
    setup, worst = ledger.setup, ledger.worst
    rows = [
        (COMPONENTS[each.name], in_gib(each.bytes.value), band(each.bytes), _why(each.why, each.bytes))
        for each in worst.components
        if each.bytes.value or each.name != "kv_pool"
    ]
    rows.append(("together", in_gib(worst.total_bytes.value), band(worst.total_bytes), _of_capacity(worst)))
    world = setup.layout.world
    whose = (
        f"rank {worst.rank} of {world} (the tightest)"
        if _differ(ledger)
        else "each GPU"
        if world > 1
        else "the GPU"
    )
    made = ", ".join(filter(None, (layout_in_words(setup), formats_in_words(setup), setup.running.backend)))
    title = f"what {whose} holds, in GiB ({made})"
    note = ". ".join(filter(None, (*ledger.notes, assumed_note(setup), build_note(ledger))))
    return Section("ledger", title, ("component", "GiB", "band", "why"), tuple(rows), note=note)


def _why(words: str, figure: Figure) -> str:
    source = "" if figure.source == "formula" else figure.source
    source = re.sub(r"^measured: formula x ([\d.]+), calibrated on (.+)$", r"x \1 by your \2", source)
    told = "; ".join(filter(None, (source, words)))
    return re.sub(r"(?<=\d) (?=\d{3}\b)", "", told)  # a line must not end inside a number


def _of_capacity(rank: RankLedger) -> str:
    if not rank.capacity:
        return ""
    free = rank.capacity - rank.total_bytes.value
    return f"of {in_gib(rank.capacity)}; {in_gib(free)} free" if free >= 0 else f"of {in_gib(rank.capacity)}"


def _differ(ledger: Ledger) -> bool:
    return len({each.total_bytes.value for each in ledger.ranks}) > 1


def ranks_section(ledger: Ledger) -> Iterator[Section]:
    """Yield the other ranks where they are not all alike."""
    if not _differ(ledger):
        return
    kinds: dict[tuple[int, ...], list[RankLedger]] = {}
    for rank in ledger.ranks:
        kinds.setdefault(tuple(each.bytes.value for each in rank.components), []).append(rank)
    rows = tuple(
        (
            _span([each.rank for each in alike]),
            in_gib(alike[0].bytes_of("weights")),
            in_gib(used(alike[0]) - alike[0].bytes_of("weights")),
            in_gib(alike[0].bytes_of("kv_pool")),
            in_gib(alike[0].total_bytes.value),
        )
        for alike in kinds.values()
    )
    yield Section(
        "ranks", "the ranks, in GiB", ("rank", "weights", "beside them", "KV cache", "together"), rows
    )


def _span(ranks: list[int]) -> str:
    return f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 2 else " and ".join(map(str, ranks))


def assumed(setup: Setup) -> list[str]:
    """Return what nobody said and was therefore taken to be the default."""
    values: dict[str, Any] = {
        "max_batch_size": setup.limits.max_batch_size,
        "max_num_tokens": setup.limits.max_num_tokens,
        "max_seq_len": setup.limits.max_seq_len,
        "free_fraction": setup.running.free_fraction,
        "dtype": setup.formats.dtype,
        "weights": _taken_for(setup),
        "tp": setup.layout.tp,
        "backend": setup.running.backend,
        "version": setup.running.version or "the newest",
        "num_kv_heads": setup.dims.num_kv_heads,
    }
    return [
        f"{NAMES.get(name, name)} {value}"
        for name, value in values.items()
        if setup.said.get(name, "").startswith("default") and not (name == "tp" and value == 1)
    ]


def _taken_for(setup: Setup) -> str:
    """Return what stands for a format that cannot be reckoned with as it is."""
    name = setup.formats.weights
    return f"taken for {name}" if known(name) else f"{name}, which is not known, as eight bits"


def assumed_note(setup: Setup) -> str:
    hidden = ("backend",) if setup.said.get("version", "").endswith("this model") else ("backend", "version")
    told = [each for each in assumed(setup) if each.partition(" ")[0] not in hidden]
    return f"not said, so the defaults: {', '.join(told)}" if told else ""


def requests_section(ledger: Ledger, lengths: Sequence[int]) -> Iterator[Section]:
    """Yield how many requests of each length the cache holds at once."""
    if not ledger.fits:
        return
    longest = ledger.setup.dims.max_positions or ledger.setup.limits.max_seq_len
    asked = sorted({*lengths} or {each for each in LENGTHS if each <= longest})
    rows = tuple((each, requests(ledger, each)) for each in asked)
    figure = ledger.kv_tokens
    each = " on each GPU" if caches(ledger.setup) > 1 else ""
    bounds = (
        f"; {short_count(figure.low)} to {short_count(figure.high)} tokens{each}"
        if figure.low != figure.high
        else ""
    )
    note = f"{ledger.worst.kv_bytes_per_token.value:,} bytes a token{bounds}"
    yield Section("requests", "requests at once", ("tokens each", "requests"), rows, note=note)


def advice_section(advice: Sequence[Advice], title: str = "what would give more room") -> Iterator[Section]:
    """Yield advice as a list: what it gains, what it does to speed, and how it is written."""
    if not advice:
        return
    rows: list[tuple[str, str]] = []
    for number, each in enumerate(advice, 1):
        rows.append((f"{number}.", f"{each.words}: {gain_in_words(each)}; {each.speed}"))
        rows += command_rows(each.advised)
    yield Section("advice", title, ("", ""), tuple(rows))


def command_rows(advised: Advised | None) -> list[tuple[str, str]]:
    """Return commands as rows of a table, each with its stage, broken where a shell lets them be broken."""
    rows: list[tuple[str, str]] = []
    for line in advised.commands if advised else ():
        rows.append(("", f"{line.stage.value}:"))
        rows += [("", f"  {part}") for part in folded(line.text)]
    return rows


def gain_in_words(advice: Advice) -> str:
    ledger = advice.ledger
    if not ledger.fits:
        return f"{gib(advice.gain_bytes)} less, still short by {gib(ledger.worst.short_bytes)}"
    tokens = _cache(ledger)
    before = max(advice.tokens_before, 1)
    times = ledger.kv_tokens.value / before
    return f"{tokens} ({times:.1f} times)" if times < 100 else tokens


def fixes(advice: Sequence[Advice]) -> tuple[Fix, ...]:
    """Return advice as fixes of a finding, at the first stage that has to be gone through again."""
    found = []
    for each in advice:
        lines = each.advised.commands if each.advised else ()
        stage = min((line.stage for line in lines), key=list(Stage).index, default=Stage.LAUNCH)
        after = "fits" if each.ledger.fits else f"still short by {gib(each.ledger.worst.short_bytes)}"
        tokens = f" with {_cache(each.ledger)}" if each.ledger.fits else ""
        text = f"{each.words}: {after}{tokens}; {each.speed}"
        found.append(Fix(stage, text, "\n".join(line.text for line in lines) or None))
    return tuple(found)


def does_not_fit(ledger: Ledger, advice: Sequence[Advice], book: RuleBook, again: str) -> Iterator[Finding]:
    """Yield the finding of a plan that does not fit, by what stands in the way."""
    if ledger.fits is not False:
        return
    setup, worst = ledger.setup, ledger.worst
    alone = worst.bytes_of("weights") >= worst.capacity
    code = "DX890" if alone else "DX891" if used(worst) >= worst.capacity else "DX893"
    values = {
        "gpu": setup.device.name if setup.device else "",
        "capacity": gib(worst.capacity),
        "weights": gib(worst.bytes_of("weights")),
        "short": gib(worst.short_bytes),
        "component": largest_beside(worst),
        "size": gib(used(worst) - worst.bytes_of("weights")),
        "used": gib(used(worst)),
        "room": gib(max(worst.capacity - used(worst), 0)),
        "length": setup.limits.max_seq_len,
        "held": counted(sequences_held(setup), "sequence"),
        "needed": gib(sequences_held(setup) * sequence_bytes(setup, worst)),
        "again": advice[0].advised.verify if advice and advice[0].advised else again,
    }
    evidence = tuple(
        Evidence(f"rank {worst.rank}: {COMPONENTS[each.name]}", f"{gib(each.bytes.value)} {each.why}".strip())
        for each in sorted(worst.components, key=lambda each: -each.bytes.value)
        if each.name != "kv_pool"
    )
    # The nearer the bands come to the limit, the less sure the verdict is.
    low = sum(each.bytes.low for each in worst.components if each.name != "kv_pool")
    confidence = 0.95 if low >= worst.capacity or code == "DX890" else 0.75
    finding = finding_from(book.get(code), Violation(evidence[:4], values, confidence=confidence))
    # The page's own commands are of another model: without advice its words are all there is to say.
    plain = tuple(msgspec.structs.replace(each, command=None) for each in finding.fixes)
    yield msgspec.structs.replace(finding, fixes=fixes(advice) or plain)


def memory_json(ledger: Ledger) -> dict[str, Any]:
    """Return a plan as the documented JSON."""
    return {
        "fits": ledger.fits,
        "kv_tokens": figure_json(ledger.kv_tokens),
        "ranks": [rank_json(each) for each in ledger.ranks],
        "assumed": [*ledger.notes, *assumed(ledger.setup)],
        "setup": msgspec.to_builtins(ledger.setup),
    }


def rank_json(rank: RankLedger) -> dict[str, Any]:
    parts = {
        f"{name}_bytes": figure_json(each.bytes) for name in COMPONENTS if (each := rank.component(name))
    }
    zero = {"value": 0, "low": 0, "high": 0, "source": "formula"}
    for name in ("weights_bytes", "activation_bytes", "kv_pool_bytes"):
        parts.setdefault(name, dict(zero))
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
            "change": each.words,
            "gain_bytes": each.gain_bytes,
            "fits": each.ledger.fits,
            "kv_tokens": each.ledger.kv_tokens.value,
            "harm": round(each.cost, 2),
            "speed": each.speed,
            **commands_json(each.advised),
        }
        for each in advice
    )


def commands_json(advised: Advised | None) -> dict[str, Any]:
    """Return the commands of a change: those to run again, all of them as `--command` takes them, and the check."""
    return {
        "flags": [
            {"stage": line.stage.value, "text": line.text} for line in (advised.commands if advised else ())
        ],
        "command": advised.whole if advised else "",
        "verify": advised.verify if advised else "",
    }
