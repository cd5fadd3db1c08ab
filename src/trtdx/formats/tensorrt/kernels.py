"""The kernels a compiled engine consists of, read from the layer listing of a verbose build log."""

from __future__ import annotations

import re

import msgspec

from trtdx.formats.tensorrt.nouns import Kernel

TYPE, METADATA = ", LayerType: ", "Metadata:"
NODE = "[ONNX Layer: "
SEPARATORS = " \x1e\x1f\r\n"  # TensorRT puts control characters between nodes
PROFILE = re.compile(r" ?\[profile (\d+)\]")
TACTIC = re.compile(r", TacticName: ([^,]*),|, TacticValue: ([^,]*),")
# TensorRT 7 to 10 without detailed verbosity: "Layer(Type): a + b, Tactic: 0x0, in (Float[1]) -> out (Float[1])".
SHORT = re.compile(r"Layer\((?P<kind>\w+)\): (?P<name>.*?), Tactic: (?P<tactic>[\w-]+), ")
GRAPH = re.compile(r"_myl(\d+)_\d+$")  # the compiled graph that a Myelin kernel belongs to
MOST_NODES = 4096  # of one kernel


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
    match = SHORT.match(line, max(line.find("Layer("), 0))
    if not match:
        return None
    name = PROFILE.sub("", match["name"])
    return Kernel(name, match["kind"], _fused(name), match["tactic"], _profile(line))


def _profile(line: str) -> int:
    match = PROFILE.search(line)
    return int(match[1][:6]) if match else 0


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
    profiles = {_graph(kernel): kernel.profile for kernel in kernels if kernel.profile and _graph(kernel)}
    return [
        msgspec.structs.replace(kernel, profile=profiles.get(_graph(kernel), kernel.profile))
        for kernel in kernels
    ]


def _graph(kernel: Kernel) -> str:
    match = GRAPH.search(kernel.name)
    return match[1] if match else ""
