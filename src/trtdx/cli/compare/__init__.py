"""`trtdx compare`: its commands and their options."""

from __future__ import annotations

from trtdx.cli.compare.commands import app

__all__ = ["app"]
