"""Log text to findings: the root cause first."""

from trtdx.api import make_callable

make_callable(__name__)
