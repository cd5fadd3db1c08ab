"""PLACEHOLDER parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.inspect.agreement import Agreement

ROWS: tuple[Agreement, ...] = ()
