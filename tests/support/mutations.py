"""Artifacts of every kind, and mutations that know their structure: what is inside stays plausible, and wrong."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import zipfile
from contextlib import closing, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from pathlib import Path

ODD_VALUES = [
    None, True, -1, 0, 2**31, 2**63, 10**400, 1e308, float("nan"), "", "x" * 5000, "1e999", "\ud83d", "\u202e", [], {},
    [[]] * 50, {"": {}}, "../../etc/passwd", "\x1b[31m", "9" * 400,
]  # fmt: skip
ODD_BYTES = [
    b"\0",
    b"\xff",
    b"\xff" * 8,
    b"\x7f\xff\xff\xff",
    b"{" * 3000,
    b"\n",
    b"\x1b]0;x\x07",
    "\u202e".encode(),
    b"",
]


MOST_BYTES = 64 << 20


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some flipped, cut out, doubled or put in."""
    buffer = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(buffer) + 1)
        kind = rng.randrange(5)
        if kind == 0 and buffer:
            buffer[min(at, len(buffer) - 1)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del buffer[at : at + rng.randint(1, 64)]
        elif kind == 2:
            buffer[at:at] = buffer[at : at + rng.randint(1, 512)] * rng.randint(1, 8)
        elif kind == 3:
            buffer[at:at] = rng.choice(ODD_BYTES)
        else:
            del buffer[at:]
    return bytes(buffer)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Return JSON in which some values are odd, keys are gone or doubled, or lists are long."""
    tree = json.loads(data)
    for _ in range(rng.randint(1, 4)):
        _mutate_tree(tree, rng)
    text = json.dumps(tree)
    return text.encode("utf-8", "surrogatepass") if rng.random() < 0.9 else mutate_bytes(text.encode(), rng)


def _mutate_tree(tree, rng):
    node = tree
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return
        key = rng.choice(keys)
        inner = node[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            node = inner
            continue
        if isinstance(node, dict) and rng.random() < 0.15:
            del node[key]
        else:
            node[key] = rng.choice(ODD_VALUES)
        return


def mutate_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Return a safetensors file with another header, or a header of another length."""
    size = int.from_bytes(data[:8], "little")
    header = mutate_json(data[8 : 8 + size], rng) if rng.random() < 0.7 else data[8 : 8 + size]
    claimed = len(header) if rng.random() < 0.7 else rng.choice([0, 1, 2**40, 2**63 - 1, len(header) + 1, 7])
    return claimed.to_bytes(8, "little") + header + data[8 + size :][: rng.choice([0, 100, 10**9])]


def mutate_lines(data: bytes, rng: random.Random) -> bytes:
    """Return text with lines doubled, swapped, cut, joined or odd."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 5)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(4)
        if kind == 0:
            lines.insert(at, rng.choice(lines) * rng.randint(1, 50))
        elif kind == 1:
            lines[at] = mutate_bytes(lines[at], rng)
        elif kind == 2:
            lines[at] = b"  " * rng.randint(1, 3000) + lines[at]
        else:
            lines[at] = lines[at].replace(
                b":", rng.choice([b"", b": &a *a", b": [", b": !!python/object:os.system", b"::"])
            )
    return b"\n".join(lines)


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Return a packed case with odd members, odd names, or damaged bytes."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(packed, "w") as after:
        for member in before.infolist():
            name = member.filename if rng.random() < 0.8 else rng.choice(["../x", "/x", "a" * 300, "files/\x1b[1m", ""])
            after.writestr(name or "x", mutate_bytes(before.read(member), rng), rng.choice([0, 8, 12, 14]))
    return packed.getvalue()


def mutate_gzip(data: bytes, rng: random.Random) -> bytes:
    """Return a compressed file of other bytes, or a damaged one."""
    return gzip.compress(mutate_json(gzip.decompress(data), rng)) if rng.random() < 0.5 else mutate_bytes(data, rng)


ODD_CELLS = [None, -1, 2**63 - 1, -(2**63), 1e308, float("inf"), "", "x", "\ud83d", b"\xff\xfe", "x" * 5000, 0]


def mutate_database(data: bytes, rng: random.Random) -> bytes:
    """Return an SQLite file with odd cells, without a table or column, or with a view in a table's place."""
    with closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        tables = [name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for _ in range(rng.randint(1, 3)):
            with suppress(sqlite3.Error, UnicodeEncodeError, IndexError):
                _mutate_table(base, rng.choice(tables), rng)
        base.commit()
        return base.serialize()


def _mutate_table(base: sqlite3.Connection, table: str, rng: random.Random) -> None:
    columns = [row[1] for row in base.execute(f"PRAGMA table_info({table})")]
    column, kind = rng.choice(columns), rng.random()
    if kind < 0.6:
        base.execute(f"UPDATE {table} SET {column} = ? WHERE rowid % ? = 0", (rng.choice(ODD_CELLS), rng.randint(1, 3)))
    elif kind < 0.75:
        base.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    elif kind < 0.85:
        base.execute(f"DROP TABLE {table}")
    else:
        names = ", ".join(f"n AS {name}" for name in columns)
        base.execute(f"DROP TABLE {table}")
        base.execute(
            f"CREATE VIEW {table} AS WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT {names} FROM c"
        )


MUTATORS = {
    ".sqlite": mutate_database, ".gz": mutate_gzip, ".npz": mutate_archive, ".md": mutate_lines, ".toml": mutate_lines,
    ".json": mutate_json, ".jsonl": mutate_lines, ".safetensors": mutate_safetensors, ".yaml": mutate_lines, ".sh": mutate_lines,
    ".pbtxt": mutate_lines, ".log": mutate_lines, ".trtdx": mutate_archive, ".onnx": mutate_bytes, ".engine": mutate_bytes,
}  # fmt: skip


def mutate_file(path: Path, rng: random.Random) -> None:
    """Mutate one file in place as its kind asks for; one in five as plain bytes."""
    mutate = MUTATORS.get(path.suffix, mutate_bytes) if rng.random() < 0.8 else mutate_bytes
    data = path.read_bytes()
    try:
        path.write_bytes(mutate(data, rng))
    except (ValueError, RecursionError, zipfile.BadZipFile, AttributeError):  # Python 3.10 cannot deserialize databases
        path.write_bytes(mutate_bytes(data, rng))


def mutate_folder(folder: Path, rng: random.Random) -> str:
    """Mutate one or two files below a folder, and return their names."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < MOST_BYTES)
    picked = rng.sample(files, min(len(files), rng.randint(1, 2)))
    for path in picked:
        mutate_file(path, rng)
    return ", ".join(str(path.relative_to(folder)) for path in picked)
