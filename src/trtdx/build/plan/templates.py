"""Plans to begin with."""

from __future__ import annotations

from importlib import resources

from trtdx.errors import UnknownNameError


def template_names() -> dict[str, str]:
    """Return the templates with their first line of explanation."""
    folder = resources.files("trtdx").joinpath("data/plans")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return {file.name.removesuffix(".yaml"): file.read_text("utf-8").splitlines()[0].lstrip("# ") for file in files}


def read_template(name: str) -> str:
    if name not in template_names():
        raise UnknownNameError("template", name, template_names())
    return resources.files("trtdx").joinpath(f"data/plans/{name}.yaml").read_text("utf-8")
