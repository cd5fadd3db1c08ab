"""The remote programs as one argument of `python3 -c`, so that nothing has to be copied to the nodes."""

from __future__ import annotations

import base64
import re
import zlib
from functools import cache
from importlib import resources

PROBE = ("marked_lines", "network", "probe")
COLLECTIVES = ("marked_lines", "collectives")
# What binds the sources as modules of trtdx, and what may stand at the head of a program only.
_LEFT_OUT = re.compile(r"^(?:from trtdx\.[^\n]*?import (?:\([^)]*\)|[^\n]*)|from __future__ [^\n]*)\n", re.MULTILINE)


@cache
def join_program(names: tuple[str, ...]) -> str:
    """Return the sources of some remote modules as one program that imports nothing of trtdx."""
    folder = resources.files("trtdx.ranks.remote")
    sources = [(folder / f"{name}.py").read_text("utf-8") for name in names]
    return "from __future__ import annotations\n" + "\n".join(_LEFT_OUT.sub("", source) for source in sources)


def python_argv(python: str, names: tuple[str, ...], argument: str) -> list[str]:
    """Return the words that run a remote program with one argument."""
    packed = base64.b64encode(zlib.compress(join_program(names).encode(), 9)).decode()
    starter = f"import base64,zlib;exec(zlib.decompress(base64.b64decode('{packed}')))"
    return [python, "-c", starter, argument]
