"""The pinned set of an environment as a lock file, and the image that goes with its release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.check.judges.requirements import list_conflicts
from trtdx.check.nouns import canonical_name
from trtdx.errors import InputError
from trtdx.knowledge.versions import at_least, nearest_release
from trtdx.version import __version__

if TYPE_CHECKING:
    from trtdx.check.mend.plan import MendingPlan
    from trtdx.check.view import EnvironmentView

FIRST_RELEASE_IMAGE = "0.20"  # nvcr.io/nvidia/tensorrt-llm/release has tags from here on


def render_lock(view: EnvironmentView, plan: MendingPlan | None) -> str:
    """Return every distribution with the version it is to have.

    Raises:
        InputError: versions do not fit, and no resolver has proven others.
    """
    if plan is not None and not plan.is_proven:
        raise InputError(
            f"no lock is written, because the plan is not proven: {plan.problem}",
            fix="make the index reachable (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL) and run it again",
        )
    pins = {
        key: f"{copy.name}=={copy.version}" for key, copy in view.in_force.items() if key not in ("pip", "setuptools")
    }
    if plan is not None:
        pins |= {canonical_name(name): f"{name}=={version}" for name, _, version in plan.changes}
    editable = [copy.name for copy in view.in_force.values() if '"editable": true' in copy.direct_url]
    lines = [f"# made by trtdx {__version__} for Python {view.python.version} from {view.record.python_path}"]
    lines += [f"# {plan.resolver} has proven what was changed" for plan in [plan] if plan]
    lines += [f"# {name} is installed from a checkout, not from an index" for name in editable]
    pins = {key: pin for key, pin in pins.items() if key not in map(canonical_name, editable)}
    return "\n".join([*lines, *(pins[key] for key in sorted(pins))]) + "\n"


def render_dockerfile(view: EnvironmentView) -> str:
    """Return a Dockerfile whose base image was made for the installed release.

    Raises:
        InputError: TensorRT-LLM is not installed, or its release is not known.
    """
    row = nearest_release(view.release) if view.release else None
    if row is None:
        raise InputError(
            "no container file is written: TensorRT-LLM is not installed in this environment",
            fix="check the environment that has it: trtdx check --python INTERPRETER --write-container FILE",
        )
    if at_least(view.release, FIRST_RELEASE_IMAGE):
        base, install = f"nvcr.io/nvidia/tensorrt-llm/release:{view.release}", ""
    else:
        base = f"nvcr.io/nvidia/pytorch:{row.ngc}-py3"
        install = f"RUN python3 -m pip install --no-cache-dir --extra-index-url https://pypi.nvidia.com tensorrt_llm=={view.release}\n"
    conflicts = ", ".join(conflict.key for conflict in list_conflicts(view))
    reason = f"# The environment it replaces does not fit together: {conflicts}.\n" if conflicts else ""
    return (
        f"# made by trtdx {__version__}: TensorRT-LLM {view.release} was made with CUDA {row.cuda}, TensorRT {row.tensorrt},"
        f" torch {row.torch}.\n{reason}FROM {base}\n{install}"
        'RUN python3 -m pip check || true\nRUN python3 -c "import tensorrt_llm"\n'
    )
