"""The kernels a compiled engine consists of, traced to ONNX nodes and modules, as tables."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from trtdx.model import Section
from trtdx.words import abbreviate_list

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.tensorrt.nouns import Kernel
    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.model import Cell

MAX_ROWS = 1000
SEVERAL_MODULES, UNKNOWN_MODULE = "(several modules)", "(unknown)"


def kernel_sections(log: Artifact, deployment: Deployment) -> Iterator[Section]:
    """Yield how many kernels there are of each type and of each module, and the kernels themselves."""
    scopes = {
        node: module for onnx in deployment.of_kinds("onnx") for node, module in onnx.table("onnx.modules").items()
    }
    yield kernel_type_section(log)
    yield kernel_module_section(log, scopes)
    yield kernel_list_section(log, scopes)


def kernel_type_section(log: Artifact) -> Section:
    """Return how many kernels of each type there are, the most frequent first, by profile."""
    profiles = sorted({kernel.profile for kernel in log.kernels})
    counts = Counter((kernel.kind, kernel.profile) for kernel in log.kernels)
    kinds = Counter(kernel.kind for kernel in log.kernels)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (kind, count, *(counts[kind, profile] for profile in profiles)) for kind, count in kinds.most_common()
    )
    columns = ("type", "kernels", *(f"in profile {profile}" for profile in profiles))
    return Section("kernels", f"kernels of {log.path} by type", columns, rows)


def kernel_module_section(log: Artifact, scopes: dict[str, str]) -> Section:
    """Return how many kernels each module has, the most first; layers of one kind are counted together."""
    modules = (common_module(kernel, scopes) for kernel in log.kernels)
    counts = Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module) for module in modules)
    rows: tuple[tuple[Cell, ...], ...] = tuple(counts.most_common(MAX_ROWS))
    note = "" if scopes else "give the ONNX file too, to see which module a kernel computes"
    return Section("kernels", f"kernels of {log.path} by module", ("module", "kernels"), rows, note)


def kernel_list_section(log: Artifact, scopes: dict[str, str]) -> Section:
    """Return the kernels with the ONNX nodes they compute and the modules those come from."""
    rows = tuple(
        (
            kernel.profile,
            kernel.kind,
            kernel.name,
            _shown_tactic(kernel),
            abbreviate_list(kernel.nodes, 4),
            abbreviate_list(modules_of_kernel(kernel, scopes), 4),
        )
        for kernel in log.kernels[:MAX_ROWS]
    )
    kinds = Counter(kernel.kind for kernel in log.kernels).most_common(8)
    summary = ", ".join(f"{count} {kind}" for kind, count in kinds)
    left = len(log.kernels) - len(rows)
    return Section(
        "kernels",
        f"kernels of {log.path}",
        ("profile", "type", "kernel", "tactic", "ONNX nodes", "module"),
        rows,
        note=f"{summary}; {left} more are not shown" if left else summary,
    )


def _shown_tactic(kernel: Kernel) -> str:
    """Return the tactic where it tells something: Myelin's repeat the kernel's name, and stubs are chosen later."""
    return "" if kernel.tactic.startswith("__my") else kernel.tactic


def modules_of_kernel(kernel: Kernel, scopes: dict[str, str]) -> list[str]:
    """Return the modules a kernel computes for, in the order of its nodes."""
    node_modules = [scopes[node] for node in kernel.nodes if node in scopes]
    return list(dict.fromkeys(node_modules)) or [module for module in (_module_in_name(kernel.name),) if module]


def _module_in_name(name: str) -> str:
    """Return "LLaMAForCausalLM.layers.0.mlp" for "LLaMAForCausalLM/layers/0/mlp/fc/PLUGIN_V2_Gemm_0".

    TensorRT-LLM names its layers so (<= 1.2, network definition API): there is no ONNX node to ask.
    """
    first = name.partition(" + ")[0].partition("...")[0]
    parts = first.removeprefix("{ForeignNode[").split("/")
    return ".".join(parts[:-1]) if len(parts) > 2 and all(parts) else ""


def common_module(kernel: Kernel, scopes: dict[str, str]) -> str:
    """Return the module that all nodes of a kernel have in common, in words where there is none."""
    paths = [module.split(".") for module in modules_of_kernel(kernel, scopes)]
    if not paths:
        return UNKNOWN_MODULE
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) or SEVERAL_MODULES
