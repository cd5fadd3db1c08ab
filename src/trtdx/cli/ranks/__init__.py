"""`trtdx ranks`: its commands and their options."""

from __future__ import annotations

from trtdx.cli.ranks.commands import app

__all__ = ["app"]
