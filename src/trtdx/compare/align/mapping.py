"""Which tensor is which, as a file that a person can read, correct and give back.

    model.layers.*.mlp:out: transformer.layers.*.mlp:out
    model.layers.0.self_attn.k_proj:out: transformer.layers.0.attention.qkv:out | part k of q:32 k:16 v:16
    :out.logits: logits | concatenate 1 | columns 0:32000
    model.layers.0.self_attn:out: transformer.layers.0.attention.dense:out | sum
    present.0.key:new: key_pages.0 | pages block_table
    model.rotary_emb:out: null

A star stands for the same text on both sides. `null` leaves a tensor out. Changes are of the candidate; after
`reference` they are of the reference.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import yaml

from trtdx.compare.align.layouts import parse_change
from trtdx.errors import InputError, UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trtdx.compare.nouns import LayoutChange, TensorPair
    from trtdx.host import Host

_JOINS = re.compile(r"sum|concatenate -?\d+|rank \d+|pages \S+")
_ON_REFERENCE = "reference "
_NAME_AND_PART = re.compile(
    r"(.*?)( \(\w+\))?", re.DOTALL
)  # of a fused tensor of the reference: "h.0.attn.c_attn:out (k)"


class MappingEntry(NamedTuple):
    """What a reference's tensor is on the other side; nothing if it is to be left out."""

    candidate: str | None
    changes: tuple[str, ...] = ()

    @property
    def text(self) -> str | None:
        return None if self.candidate is None else " | ".join((self.candidate, *self.changes))


class TensorMapping(NamedTuple):
    """The tensors of the reference and what they are in the candidate."""

    entries: dict[str, MappingEntry]

    @property
    def text(self) -> str:
        """The mapping as a file."""
        plain = {name: entry.text for name, entry in self.entries.items()}
        written: str = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=1000)
        return written if plain else ""

    def resolve_names(self, reference_names: Iterable[str], candidate_names: Iterable[str]) -> dict[str, MappingEntry]:
        """Return an entry for each name of the reference that the mapping tells of.

        Raises:
            UnknownNameError: one of the sides has no tensor of such a name; it has the nearest.
        """
        known, others = list(reference_names), set(candidate_names)
        entries: dict[str, MappingEntry] = {}
        for key, entry in self.entries.items():
            name, part = _NAME_AND_PART.fullmatch(key).groups("")  # type: ignore[union-attr]
            hits = list(_match_stars(name, known))
            if not hits:
                raise UnknownNameError("tensor of the reference", name, known)
            for hit, stars in hits:
                candidate = entry.candidate and _fill_stars(entry.candidate, stars)
                if candidate is not None and candidate not in others:
                    raise UnknownNameError("tensor of the candidate", candidate, others)
                entries[hit + part] = MappingEntry(candidate, entry.changes)
        return entries


def _match_stars(pattern: str, names: Iterable[str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    parts = re.compile("([^.:]*)".join(map(re.escape, pattern.split("*"))))
    for name in names:
        match = parts.fullmatch(name)
        if match:
            yield name, match.groups()


def _fill_stars(pattern: str, stars: tuple[str, ...]) -> str:
    pieces = pattern.split("*")
    if len(pieces) - 1 > len(stars):
        raise InputError(f"{pattern!r} has more stars than the reference's name")
    return "".join(piece + (stars[number] if number < len(pieces) - 1 else "") for number, piece in enumerate(pieces))


def parse_mapping(text: str, file: str = "the mapping") -> TensorMapping:
    """Return the mapping that a file states.

    Raises:
        InputError: it is no mapping, or asks for a change that nobody knows.
    """
    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as err:
        raise InputError(f"{file} is not YAML: {str(err).splitlines()[0]}") from err
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise InputError(f"{file} is not a mapping", fix="write a line for each tensor: REFERENCE: CANDIDATE | CHANGE")
    return TensorMapping({str(name): _parse_entry(str(name), value, file) for name, value in data.items()})


def _parse_entry(name: str, value: object, file: str) -> MappingEntry:
    if value is None:
        return MappingEntry(None)
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{file}: {name} is mapped to {value!r}", fix="name a tensor of the candidate, or null")
    candidate, *changes = (part.strip() for part in value.split(" | "))
    for change in changes:
        if not _JOINS.fullmatch(change):
            parse_change(change.removeprefix(_ON_REFERENCE))
    return MappingEntry(candidate, tuple(changes))


def read_mapping(host: Host, path: str) -> TensorMapping:
    """Return the mapping in a file."""
    try:
        with host.open(path) as stream:
            data = stream.read(16 << 20)
    except OSError as err:
        raise InputError(f"cannot read {path}: {err.strerror or err}") from err
    try:
        return parse_mapping(data.decode(), path)
    except UnicodeDecodeError as err:
        raise InputError(f"{path} is not text") from err


def mapping_from_pairs(pairs: Iterable[TensorPair], stated: dict[str, MappingEntry] | None = None) -> TensorMapping:
    """Return an alignment as a mapping, to be seen, saved and corrected; of steps, the first that has a tensor.

    What a mapping stated before stays.
    """
    entries = dict(stated or {})
    for pair in pairs:
        if pair.name in entries:
            continue
        join = pair.candidate.join
        changes = (
            *(f"{_ON_REFERENCE}{change.text}" for change in pair.reference.changes),
            *(change.text for change in pair.candidate.changes),
            *([join] if _JOINS.fullmatch(join) else []),
            *(change.text for change in pair.candidate.joined_changes),
        )
        entries[pair.name] = MappingEntry(pair.candidate.first.name, changes)
    return TensorMapping(entries)


class RequestedLayout(NamedTuple):
    """What is to be done with a match's tensors before anything else."""

    reference_changes: tuple[LayoutChange, ...] = ()
    candidate_changes: tuple[LayoutChange, ...] = ()
    join: str = ""  # that a mapping asks for
    rank: int | None = None
    pages: str = ""


def parse_requested_layout(changes: tuple[str, ...]) -> RequestedLayout:
    """Return what the texts in a mapping ask for."""
    requested = RequestedLayout()
    for text in changes:
        word, _, rest = text.partition(" ")
        if word == "reference":
            requested = requested._replace(reference_changes=(*requested.reference_changes, parse_change(rest)))
        elif word in ("sum", "concatenate"):
            requested = requested._replace(join=text)
        elif word == "rank":
            requested = requested._replace(rank=int(rest))
        elif word == "pages":
            requested = requested._replace(pages=rest)
        elif word not in ("columns", "mask", "regroup"):  # done again wherever they are needed
            requested = requested._replace(candidate_changes=(*requested.candidate_changes, parse_change(text)))
    return requested
