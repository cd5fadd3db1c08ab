"""Loads trtdx's agent into this process, then steps aside for the user's own sitecustomize."""

import os
import sys


def _load_agent(folder: str) -> None:
    import importlib
    import importlib.util

    where = os.path.join(folder, "__init__.py")
    spec = importlib.util.spec_from_file_location("_trtdx_agent", where, submodule_search_locations=[folder])
    if spec is None or spec.loader is None:
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules["_trtdx_agent"] = package
    spec.loader.exec_module(package)
    importlib.import_module("_trtdx_agent.start").start_agent()


def _note_failure(live: str) -> None:
    import traceback

    with open(os.path.join(live, f"agent-failed-{os.getpid()}.txt"), "a") as file:
        traceback.print_exc(file=file)


def _step_aside(here: str) -> None:
    """Take this folder off the path and run the sitecustomize it hides, where there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    sys.path_importer_cache.pop(here, None)
    own = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401 -- the user's own, if there is one
    except ModuleNotFoundError as err:
        if err.name != "sitecustomize":
            raise
        if own is not None:
            sys.modules["sitecustomize"] = own


_here = os.path.dirname(os.path.abspath(__file__))
_live = os.environ.get("TRTDX_LIVE")
if _live and os.path.isdir(_live):
    try:
        _load_agent(os.path.dirname(_here))
    except BaseException:
        try:
            _note_failure(_live)
        except BaseException:
            pass
_step_aside(_here)
