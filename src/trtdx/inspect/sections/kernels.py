"""The kernels a compiled engine consists of: read from a verbose build log, traced to ONNX nodes and modules."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from trtdx.inspect.facts.artifact import Kernel
from trtdx.model import Section
from trtdx.words import listed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.inspect.facts.artifact import Artifact, Deployment
    from trtdx.model import Cell

TYPE, METADATA = ", LayerType: ", "Metadata:"
NODE = "[ONNX Layer: "
SEPARATORS = " \x1e\x1f\r\n"  # TensorRT puts control characters between nodes
PROFILE = re.compile(r" ?\[profile (\d+)\]")
TACTIC = re.compile(r", TacticName: ([^,]*),|, TacticValue: ([^,]*),")
# TensorRT 7 to 10 without detailed verbosity: "Layer(Type): a + b, Tactic: 0x0, in (Float[1]) -> out (Float[1])".
SHORT = re.compile(r"Layer\((?P<kind>\w+)\): (?P<name>.*?), Tactic: (?P<tactic>[\w-]+), ")
GRAPH = re.compile(r"_myl(\d+)_\d+$")  # the compiled graph that a Myelin kernel belongs to
MOST_NODES = 4096  # of one kernel
MOST_ROWS = 1000
WHOLE_MODEL, NO_MODULE = "(several modules)", "(unknown)"


def kernel_from(line: str) -> Kernel | None:
    """Return the kernel of a line of the layer listing, in its detailed or its short form."""
    at = line.find(TYPE)
    if at < 0:
        return _short(line)
    name = line[:at].partition("Name: ")[2]
    tactic = TACTIC.search(line)
    metadata = line.rpartition(METADATA)[2] if METADATA in line else ""
    return Kernel(
        name=PROFILE.sub("", name),
        kind=line[at + len(TYPE) :].partition(",")[0].strip(),
        nodes=nodes_from(metadata),
        tactic=(tactic[1] or tactic[2] or "").strip() if tactic else "",
        profile=_profile(line),
    )


def _short(line: str) -> Kernel | None:
    found = SHORT.match(line, max(line.find("Layer("), 0))
    if not found:
        return None
    name = PROFILE.sub("", found["name"])
    return Kernel(name, found["kind"], _fused(name), found["tactic"], _profile(line))


def _profile(line: str) -> int:
    found = PROFILE.search(line)
    return int(found[1][:6]) if found else 0


def nodes_from(metadata: str) -> tuple[str, ...]:
    """Return the nodes of "[ONNX Layer: a][ONNX Layer: b]"; a name may hold brackets itself.

    A network that was made with TensorRT's API may have any other metadata: one text for each layer.
    """
    if NODE not in metadata:
        texts = (text.strip() for text in re.split("[\x1e\x1f]", metadata.strip()))
        return tuple(dict.fromkeys(text for text in texts if text))[:MOST_NODES]
    parts = metadata.split(NODE)[1 : MOST_NODES + 1]
    return tuple(dict.fromkeys(part.strip(SEPARATORS).removesuffix("]") for part in parts))


def _fused(name: str) -> tuple[str, ...]:
    """Return the layers that a name such as "Conv_1 + PWN(Relu_2)" joins; those TensorRT made up are left out."""
    parts = (re.sub(r"^PWN\((.*)\)$", r"\1", part.strip()) for part in name.split(" + "))
    made_up = ("(Unnamed Layer*", "{", "[", "Reformatting CopyNode", "ONNXTRT_")
    return tuple(part for part in parts if part and not part.startswith(made_up))


def placed(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with their profiles: all of one compiled graph belong to the profile any of them names."""
    graphs = [_graph(kernel) for kernel in kernels]
    known = {graph: kernel.profile for graph, kernel in zip(graphs, kernels, strict=True) if kernel.profile}
    return [
        Kernel(
            each.name,
            each.kind,
            each.nodes,
            each.tactic,
            known.get(graph, each.profile) if graph else each.profile,
        )
        for graph, each in zip(graphs, kernels, strict=True)
    ]


def _graph(kernel: Kernel) -> str:
    found = GRAPH.search(kernel.name)
    return found[1] if found else ""


def kernel_sections(log: Artifact, deployment: Deployment) -> Iterator[Section]:
    """Yield how many kernels there are of each type and of each module, and the kernels themselves."""
    scopes = {
        node: module for onnx in deployment.of("onnx") for node, module in onnx.table("onnx.modules").items()
    }
    yield type_section(log)
    yield module_section(log, scopes)
    yield kernel_section(log, scopes)


def type_section(log: Artifact) -> Section:
    """Return how many kernels of each type there are, the most frequent first, by profile."""
    profiles = sorted({kernel.profile for kernel in log.kernels})
    counts = Counter((kernel.kind, kernel.profile) for kernel in log.kernels)
    kinds = Counter(kernel.kind for kernel in log.kernels)
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (kind, count, *(counts[kind, profile] for profile in profiles)) for kind, count in kinds.most_common()
    )
    columns = ("type", "kernels", *(f"in profile {profile}" for profile in profiles))
    return Section("kernels", f"kernels of {log.path} by type", columns, rows)


def module_section(log: Artifact, scopes: dict[str, str]) -> Section:
    """Return how many kernels each module has, the most first; layers of one kind are counted together."""
    modules = (module_of(kernel, scopes) for kernel in log.kernels)
    counts = Counter(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", module) for module in modules)
    rows: tuple[tuple[Cell, ...], ...] = tuple(counts.most_common(MOST_ROWS))
    note = "" if scopes else "give the ONNX file too, to see which module a kernel computes"
    return Section("kernels", f"kernels of {log.path} by module", ("module", "kernels"), rows, note)


def kernel_section(log: Artifact, scopes: dict[str, str]) -> Section:
    """Return the kernels with the ONNX nodes they compute and the modules those come from."""
    rows = tuple(
        (
            kernel.profile,
            kernel.kind,
            kernel.name,
            _tactic(kernel),
            listed(kernel.nodes, 4),
            listed(modules_of(kernel, scopes), 4),
        )
        for kernel in log.kernels[:MOST_ROWS]
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


def _tactic(kernel: Kernel) -> str:
    """Return the tactic where it tells something: Myelin's repeat the kernel's name, and stubs are chosen later."""
    return "" if kernel.tactic.startswith("__my") else kernel.tactic


def modules_of(kernel: Kernel, scopes: dict[str, str]) -> list[str]:
    """Return the modules a kernel computes for, in the order of its nodes."""
    known = [scopes[node] for node in kernel.nodes if node in scopes]
    return list(dict.fromkeys(known)) or [module for module in (_module_in_name(kernel.name),) if module]


def _module_in_name(name: str) -> str:
    """Return "LLaMAForCausalLM.layers.0.mlp" for "LLaMAForCausalLM/layers/0/mlp/fc/PLUGIN_V2_Gemm_0".

    TensorRT-LLM names its layers so (<= 1.2, network definition API): there is no ONNX node to ask.
    """
    first = name.partition(" + ")[0].partition("...")[0]
    parts = first.removeprefix("{ForeignNode[").split("/")
    return ".".join(parts[:-1]) if len(parts) > 2 and all(parts) else ""


def module_of(kernel: Kernel, scopes: dict[str, str]) -> str:
    """Return the module that all nodes of a kernel have in common, in words where there is none."""
    paths = [module.split(".") for module in modules_of(kernel, scopes)]
    if not paths:
        return NO_MODULE
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared) or WHOLE_MODEL
