"""`trtdx memory`: its commands and their options."""

from __future__ import annotations

from trtdx.cli.memory.commands import app

__all__ = ["app"]
