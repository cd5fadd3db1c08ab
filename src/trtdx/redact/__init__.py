"""Secrets out of everything that leaves: reports in any format, cases, file names, error messages.

Text goes through `redact_secrets`, structured values through `redact_value`, which also judges by key name. Every
replacement is a fixed point: redacting twice is redacting once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.redact.hosts import redact_hosts
from trtdx.redact.mark import MARK
from trtdx.redact.secrets import redact_secrets
from trtdx.redact.values import redact_report, redact_value

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MARK", "make_redactor", "redact_hosts", "redact_report", "redact_secrets", "redact_value"]


def make_redactor(*, hide_hosts: bool) -> Callable[[str], str]:
    """Return the function that takes out secrets, and host names and addresses too where asked."""
    return (lambda text: redact_hosts(redact_secrets(text))) if hide_hosts else redact_secrets
