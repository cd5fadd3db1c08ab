"""Everything a log states about memory, each statement with its line.

The log is read by `diagnose`: the same sources (packed files, folders, cases, standard input), the same lines,
the same layers of launchers and loggers, and the same bound on memory.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from trtdx.diagnose.logs.sources import open_sources
from trtdx.diagnose.matcher import Matcher
from trtdx.errors import InputError, TrtdxError
from trtdx.memory.logs.settings import NUMBER_SETTINGS, LogSetting, most_trusted_settings, parse_log_settings
from trtdx.memory.logs.statements import LogStatement, parse_statements
from trtdx.redact import redact_secrets
from trtdx.rule import RuleBook

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trtdx.diagnose.nouns import LogEvent, SourceFacts
    from trtdx.host import Host

BLOCK_REACH = 40  # lines below "Executor creation failed" that still belong to its rank
_RANK_OF_BLOCK = re.compile(r"Executor creation failed due to insufficient GPU memory")
_NAMED_RANK = re.compile(r"on rank (\d+)")
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,5})", re.IGNORECASE)


SHARED_KEYS = frozenset(("kv.pool", "torch.peak", "torch.estimated", "torch.fraction"))  # what one rank says for all


class LogMemory(msgspec.Struct, frozen=True):
    """What logs state about memory, in the order they state it."""

    statements: tuple[LogStatement, ...]
    settings: dict[str, LogSetting]
    names: tuple[str, ...] = ()  # of the logs
    lines: int = 0
    size: int = 0  # bytes read
    partial: tuple[str, ...] = ()  # why a log was not read to its end

    def select(self, *keys: str, rank: int | None = None) -> list[LogStatement]:
        """Return the statements of some kinds, of one rank where one is named; those without a rank are everybody's.

        Ranks have caches of one size, and often only the first prints it.
        """
        matching = [statement for statement in self.statements if statement.key in keys]
        ranks = {statement.rank for statement in matching} if rank is None else {None, rank}
        of_rank = [statement for statement in matching if statement.rank in ranks]
        if of_rank or not matching or len(self.names) > 1 or not SHARED_KEYS.issuperset(keys):
            return of_rank
        return [statement for statement in matching if statement.rank == matching[0].rank]

    def last(self, *keys: str, rank: int | None = None) -> LogStatement | None:
        return next(reversed(self.select(*keys, rank=rank)), None)

    def first(self, *keys: str, rank: int | None = None) -> LogStatement | None:
        return next(iter(self.select(*keys, rank=rank)), None)

    def number(self, name: str) -> int | None:
        """Return a setting that is a number."""
        setting = self.settings.get(name)
        return int(setting.value) if setting and name in NUMBER_SETTINGS else None

    @property
    def fraction(self) -> float | None:
        """Return the share of free memory the KV cache was given, as far as the log says it."""
        for statement in reversed(self.select("torch.peak", "kv.both")):
            if "fraction" in statement.values:
                return round(statement.values["fraction"].value, 6)  # a float32 printed in full
        setting = self.settings.get("kv_cache_free_gpu_memory_fraction")
        return float(setting.value) if setting else None

    def rank_of(self, statement: LogStatement) -> int:
        """Return the rank of a statement; the first where it names none."""
        return self.ranks[0] if statement.rank is None else statement.rank

    @property
    def ranks(self) -> tuple[int, ...]:
        """Return the ranks that spoke of memory; one where nobody said who he is."""
        return tuple(sorted({statement.rank for statement in self.statements if statement.rank is not None})) or (0,)

    @property
    def backend(self) -> str:
        """Return "pytorch", "tensorrt", "build" or nothing, by who wrote the lines."""
        keys = {statement.key for statement in self.statements}
        kinds = {key.partition(".")[0] for key in keys - {"torch.oom"}}
        if kinds & {"torch", "executor"} and "engine" not in kinds:
            return "pytorch"
        if kinds & {"engine", "context", "runtime", "decoder"} or "kv.available" in keys:
            return "tensorrt"
        if len({statement.value_of("tokens") for statement in self.select("kv.pool")}) > 1:
            return "pytorch"  # a temporary cache, and the real one
        return "build" if "build" in kinds else ""


def read_memory_log(host: Host, *paths: str) -> LogMemory:
    """Return what the logs state about memory.

    Raises:
        InputError: if there is no such file, or nothing in it could be read.
    """
    return memory_from_facts(*read_log_facts(host, paths, Matcher(RuleBook([]), redact_secrets)))


def read_log_facts(host: Host, paths: Sequence[str], matcher: Matcher) -> tuple[list[SourceFacts], list[str]]:
    """Return what a matcher finds in the logs, and what kept one from being read to its end."""
    log_sources, skipped = open_sources(host, paths)
    problems = [f"{source.name}: {source.reason}" for source in skipped]
    facts = [
        matcher.collect_facts(source.name, _keep_read_errors(source.blocks(), source.name, problems))
        for source in log_sources
    ]
    if not any(source.bytes_read for source in facts):
        raise InputError(
            f"nothing was read: {'; '.join(problems) or 'the input is empty'}",
            fix="give the log of trtllm-build, trtllm-serve, a Triton server or a script that runs the model",
        )
    return facts, problems


def _keep_read_errors(blocks: Iterable[bytes], name: str, problems: list[str]) -> Iterator[bytes]:
    try:
        yield from blocks
    except (TrtdxError, OSError) as err:
        problems.append(f"{name}: {err}")


def memory_from_facts(facts: Sequence[SourceFacts], partial: Sequence[str] = ()) -> LogMemory:
    """Return what sources that were read already state about memory."""
    statements: list[LogStatement] = []
    settings: list[LogSetting] = []
    for source in facts:
        named = _RANK_IN_NAME.search(source.name)
        named_rank = int(named[1]) if named and len(facts) > 1 else None
        statements += _event_statements(source.memory_events, named_rank)
        settings += [
            setting
            for event in sorted(source.memory_events, key=_event_line)
            for setting in parse_log_settings(event.peeled.message, event.where)
        ]
    return LogMemory(
        tuple(statements),
        most_trusted_settings(settings),
        tuple(source.name for source in facts),
        sum(source.lines_read for source in facts),
        sum(source.bytes_read for source in facts),
        tuple(partial),
    )


def _event_statements(events: Iterable[LogEvent], named_rank: int | None) -> Iterator[LogStatement]:
    block_rank, block_line = None, -BLOCK_REACH
    for event in sorted(events, key=_event_line):
        rank = event.peeled.rank if event.peeled.rank is not None else named_rank
        if _RANK_OF_BLOCK.search(event.text):
            named = _NAMED_RANK.search(event.text)
            block_rank, block_line = int(named[1]) if named else rank, event.line
        for statement in parse_statements(event.text, event.peeled.message, rank):
            if statement.key.startswith("executor.") and event.line - block_line < BLOCK_REACH and rank is None:
                statement = replace(statement, rank=block_rank)
            yield replace(statement, source=event.source, line=event.line, level=event.peeled.level)


def _event_line(event: LogEvent) -> int:
    return event.line
