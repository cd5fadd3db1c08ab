"""What is wrong with a machine and a Python environment, and the commands that mend it."""

from trtdx.api import make_callable

make_callable(__name__)
