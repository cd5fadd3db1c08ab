"""The tensors of one run: what to look at, what is seen there, and where it is kept."""

from trtdx.api import make_callable

make_callable(__name__)
