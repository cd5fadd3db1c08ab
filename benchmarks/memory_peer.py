"""Run by the Python that aiconfigurator is installed in: its estimate for each request on standard input."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any


def main() -> None:
    from aiconfigurator_core.sdk.memory import estimate_kv_cache

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return dict(estimate_kv_cache(**request))
        except Exception as err:  # the peer's own reason is the answer
            return {"refused": f"{type(err).__name__}: {err}"}

    json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout, default=str)


main()
