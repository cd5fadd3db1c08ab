"""What no command of a release can say."""

from __future__ import annotations


class UnwritableError(Exception):
    """There is no flag or option for a thing, so no command is advised that would need it."""
