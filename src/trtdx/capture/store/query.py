"""SQL over the statistics of a capture: one table, `tensors`, made from the index, and nothing else within reach.

The table is made from the index and not from the Parquet file beside it: the index is there after a kill, and
what is in it was checked. The Parquet file is for other tools.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from trtdx.capture.store import format as disk
from trtdx.capture.store.format import CaptureError
from trtdx.capture.store.reader import RankFiles
from trtdx.errors import InputError
from trtdx.optional import import_optional
from trtdx.tensors.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import numpy as np

CHUNK_ROWS = 1 << 16
MAX_ROWS = 100_000
TIMEOUT_S = 120.0
MEMORY_LIMIT = "1GB"
MAX_CELL = 1 << 20  # characters

_MEASURED = [f"CASE WHEN isnan({name}) THEN NULL ELSE {name} END AS {name}" for name in Statistics._fields[6:-1]]
_CREATE_TENSORS = f"""
CREATE TABLE tensors AS SELECT
  record, step, rows.rank, name, path, port, number, argument, op, dtype, shape::BIGINT[] AS shape, device,
  elements, bytes, {", ".join(_MEASURED)}, zeros, nan, pos_inf, neg_inf, subnormals,
  format('{{:016x}}{{:016x}}', hash_high, hash_low) AS hash, kept, left_out
FROM rows
JOIN places ON rows.rank = places.rank AND rows.place = places.place
JOIN layouts ON rows.rank = layouts.rank AND rows.layout = layouts.layout
ORDER BY rows.rank, record
"""  # noqa: S608  # all names are ours
_LOCKED_SETTINGS = (
    "SET enable_external_access=false",
    "SET autoinstall_known_extensions=false",
    "SET autoload_known_extensions=false",
    "SET python_enable_replacements=false",  # Python's variables are not tables
    "SET lock_configuration=true",
)


class QueryTable(NamedTuple):
    """What a query answers."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    is_cut: bool = False  # there were more rows than are given


def query_tensors(
    ranks: Sequence[RankFiles], sql: str, *, most_rows: int = MAX_ROWS, timeout_s: float = TIMEOUT_S
) -> QueryTable:
    """Return what one SELECT over `tensors` answers.

    Raises:
        InputError: the query is not one SELECT, is wrong or takes too long.
        MissingExtraError: DuckDB is not installed.
    """
    duckdb = import_optional("duckdb", extra="capture", purpose="query captures")
    with _open_database(duckdb, ranks) as connection:
        for setting in _LOCKED_SETTINGS:
            connection.execute(setting)
        late = threading.Timer(timeout_s, connection.interrupt)
        late.daemon = True
        late.start()
        try:
            _check_statement(duckdb, connection.extract_statements(sql))
            answer = connection.execute(sql)
            columns = tuple(column[0] for column in answer.description)
            rows = answer.fetchmany(most_rows + 1)
        except duckdb.InterruptException as err:
            raise InputError(f"the query did not end within {timeout_s:g} s") from err
        except duckdb.Error as err:
            raise InputError(
                f"the query does not work: {err}", fix=f"the table is tensors: {_describe_columns()}"
            ) from err
        except RuntimeError as err:
            if "interrupted" in str(err):  # what DuckDB makes of Ctrl-C
                raise KeyboardInterrupt from err
            raise
        finally:
            late.cancel()
    shown = [tuple(map(_cut_cell, row)) for row in rows[:most_rows]]
    return QueryTable(columns, shown, len(rows) > most_rows)


def _cut_cell(cell: Any) -> Any:
    """Return a cell, of a very long text its beginning: nobody reads gigabytes, and showing them takes many times that."""
    return cell[:MAX_CELL] if isinstance(cell, (str, bytes)) and len(cell) > MAX_CELL else cell


def write_parquet(folder: Path, rank: int) -> None:
    """Write a rank's statistics as a Parquet file beside its index."""
    duckdb = import_optional("duckdb", extra="capture", purpose="write Parquet")
    target = folder / disk.parquet_name(rank)
    part = target.with_name(f"{target.name}.part")
    try:
        with RankFiles(folder, rank) as files, _open_database(duckdb, [files]) as connection:
            quoted = str(part).replace("'", "''")
            connection.execute(f"COPY tensors TO '{quoted}' (FORMAT parquet)")
        part.replace(target)
    except (duckdb.Error, OSError) as err:
        with contextlib.suppress(OSError):
            part.unlink()
        raise CaptureError(f"cannot write {target}: {err}") from err


def _check_statement(duckdb: Any, statements: Sequence[Any]) -> None:
    allowed = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if len(statements) != 1 or statements[0].type not in allowed:
        raise InputError("a query is one SELECT", fix=f"the table is tensors: {_describe_columns()}")


def _describe_columns() -> str:
    return (
        "step, rank, name, path, port, op, dtype, shape, elements, min, max, mean, std, absmax, l2, p01 to p99, "
        "zeros, nan, pos_inf, neg_inf, subnormals, hash, kept"
    )


@contextlib.contextmanager
def _open_database(duckdb: Any, ranks: Sequence[RankFiles]) -> Iterator[Any]:
    """Yield a connection to a database in memory that holds the table."""
    connection = duckdb.connect(":memory:", config={"memory_limit": MEMORY_LIMIT, "threads": 2})
    try:
        for name, parts in (("places", map(_place_columns, ranks)), ("layouts", map(_layout_columns, ranks))):
            _insert_parts(connection, name, parts)
        _insert_parts(connection, "rows", (part for files in ranks for part in _iter_row_chunks(files)))
        connection.execute(_CREATE_TENSORS)
        for name in ("rows", "places", "layouts"):
            connection.execute(f"DROP TABLE {name}")
        yield connection
    finally:
        connection.close()


def _insert_parts(connection: Any, name: str, parts: Iterator[dict[str, np.ndarray[Any, Any]]]) -> None:
    created = False
    for part in parts:
        connection.register("part", part)
        how = f"INSERT INTO {name}" if created else f"CREATE TABLE {name} AS"
        connection.execute(f"{how} FROM part")
        connection.unregister("part")
        created = True


def _text_column(values: list[str]) -> np.ndarray[Any, Any]:
    import numpy as np

    texts = np.empty(len(values), object)
    texts[:] = values
    return texts


def _place_columns(files: RankFiles) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    places = files.places
    return {
        "rank": np.full(len(places), files.rank, np.int32),
        "place": np.arange(len(places), dtype=np.uint32),
        "name": _text_column([place.name for place in places]),
        "path": _text_column([place.path for place in places]),
        "port": _text_column([place.port for place in places]),
        "number": np.array([min(place.number, 2**31 - 1) for place in places], np.int32),
        "argument": _text_column([place.argument for place in places]),
        "op": _text_column([place.op for place in places]),
    }


def _layout_columns(files: RankFiles) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    layouts = files.layouts
    return {
        "rank": np.full(len(layouts), files.rank, np.int32),
        "layout": np.arange(len(layouts), dtype=np.uint32),
        "dtype": _text_column([layout.dtype for layout in layouts]),
        "shape": _text_column([str(list(layout.shape)) for layout in layouts]),
        "device": _text_column([layout.device for layout in layouts]),
    }


def _iter_row_chunks(files: RankFiles) -> Iterator[dict[str, np.ndarray[Any, Any]]]:
    """Yield the rows column by column, in chunks."""
    import numpy as np

    waiting, first = [np.zeros(0, disk.row_dtype())], 0
    for rows in files.rows():
        waiting.append(rows)
        if sum(map(len, waiting)) >= CHUNK_ROWS:
            yield _row_columns(files, np.concatenate(waiting), first)
            first += sum(map(len, waiting))
            waiting = []
    if waiting or not first:
        yield _row_columns(files, np.concatenate(waiting), first)


def _row_columns(files: RankFiles, rows: np.ndarray[Any, Any], first: int) -> dict[str, np.ndarray[Any, Any]]:
    import numpy as np

    names = [name for name in rows.dtype.names or () if name not in ("hash", "flags", "offset")]
    columns = {name: np.ascontiguousarray(rows[name]) for name in names}
    digests = np.ascontiguousarray(rows["hash"]).view(">u8").astype("u8").reshape(-1, 2)  # as its bytes read
    return columns | {
        "rank": np.full(len(rows), files.rank, np.int32),
        "record": np.arange(first, first + len(rows)),
        "hash_high": np.ascontiguousarray(digests[:, 0]),
        "hash_low": np.ascontiguousarray(digests[:, 1]),
        "kept": files.rows_with_values(rows),
        "left_out": (rows["flags"] & disk.LEFT_OUT).astype(bool),
    }
