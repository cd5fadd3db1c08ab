"""Two runs side by side: what is which, what is noise, where it first goes wrong, and why."""

from trtdx.api import make_callable

make_callable(__name__)
