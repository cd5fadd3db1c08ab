"""Names that Python text uses and defines nowhere, by the standard library's own symbol tables.

Not pyflakes: `trtdx rules check` runs where a team keeps its pages, and the one question asked here is a table away.
"""

from __future__ import annotations

import builtins
import re
import symtable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What a reader's own program has and imports: a line for it may use them without saying where they come from.
READERS_NAMES = frozenset(
    re.findall(
        r"\w+",
        "model tokenizer llm engine context stream network config builder parser profile profile_index runtime logger buffers "
        "inputs outputs output args x y a m img ids name path prompt texts params client app self ctx batch batches shape ptr "
        "tensor weight host_input h_in h_out d_in d_out local_rank op fn main train calibrate answer requests request "
        "torch np trt onnx ort cuda cv2 mtq deepspeed torch_tensorrt pb_utils httpclient "
        "AutoModelForCausalLM DistributedDataParallel LLM SamplingParams",
    )
)


def undefined_names(code: str, known: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the names that a text uses and neither defines, imports nor is lent; capitals are for a reader to put in."""
    top = symtable.symtable(code, "pasted", "exec")
    if re.search(r"^\s*from\s+\S+\s+import\s+\*", code, re.MULTILINE):
        return ()
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {
        symbol.get_name()
        for table in _tables(top)
        for symbol in table.get_symbols()
        if symbol.is_declared_global() and symbol.is_assigned()
    }
    used = {
        symbol.get_name(): None
        for table in _tables(top)
        for symbol in table.get_symbols()
        if _is_global_use(table, symbol)
    }
    return tuple(
        name
        for name in used
        if name not in defined | known
        and not hasattr(builtins, name)
        and name not in ("__file__", "__name__")
        and not re.fullmatch(r"[A-Z][A-Z0-9_]*", name)
    )


def _is_global_use(table: symtable.SymbolTable, symbol: symtable.Symbol) -> bool:
    return symbol.is_referenced() and (symbol.is_global() or table.get_type() == "module")


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
