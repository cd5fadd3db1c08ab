"""What uses the memory of a GPU, what fits, and what to change."""

from trtdx.api import make_callable

make_callable(__name__)
