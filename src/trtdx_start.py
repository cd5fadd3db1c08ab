"""The command `trtdx`, started so that the environment it is asked about cannot break it.

`trtdx check` looks at environments in which `PYTHONPATH` may lead to anything, a broken `typing.py` included. Where it
is set, the command starts itself again without it; the variable stays in the environment, which is what is judged.
This module lies outside the package, because importing the package imports more than can be trusted then.
"""

import os
import sys

AGAIN = "import sys; sys.path[:] = [path for path in sys.path if path]; from trtdx.cli.main import main; main()"


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["check"] and os.environ.get("PYTHONPATH") and not sys.flags.ignore_environment:
        os.execv(sys.executable, [sys.executable, "-E", "-c", AGAIN, *sys.argv[1:]])  # noqa: S606
    try:
        from trtdx.cli.main import main as run_command
    except KeyboardInterrupt:  # Ctrl-C comes first of all while modules are loaded
        sys.exit(130)
    run_command()
