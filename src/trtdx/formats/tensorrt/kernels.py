"""The kernels a compiled engine consists of, read from the layer listing of a verbose build log."""

from __future__ import annotations

import re

import msgspec

from trtdx.formats.tensorrt.nouns import Kernel

LAYER_TYPE, METADATA = ", LayerType: ", "Metadata:"
NODE_MARK = "[ONNX Layer: "
SEPARATORS = " \x1e\x1f\r\n"  # TensorRT puts control characters between nodes
PROFILE = re.compile(r" ?\[profile (\d+)\]")
TACTIC = re.compile(r", TacticName: ([^,]*),|, TacticValue: ([^,]*),")
# TensorRT 7 to 10 without detailed verbosity: "Layer(Type): a + b, Tactic: 0x0, in (Float[1]) -> out (Float[1])".
SHORT_LISTING = re.compile(r"Layer\((?P<kind>\w+)\): (?P<name>.*?), Tactic: (?P<tactic>[\w-]+), ")
MYELIN_GRAPH = re.compile(r"_myl(\d+)_\d+$")  # the compiled graph that a Myelin kernel belongs to
MAX_NODES = 4096  # of one kernel


def parse_kernel_line(line: str) -> Kernel | None:
    """Return the kernel of a line of the layer listing, in its detailed or its short form."""
    at = line.find(LAYER_TYPE)
    if at < 0:
        return _parse_short_line(line)
    name = line[:at].partition("Name: ")[2]
    tactic = TACTIC.search(line)
    metadata = line.rpartition(METADATA)[2] if METADATA in line else ""
    return Kernel(
        name=PROFILE.sub("", name),
        kind=line[at + len(LAYER_TYPE) :].partition(",")[0].strip(),
        nodes=parse_kernel_nodes(metadata),
        tactic=(tactic[1] or tactic[2] or "").strip() if tactic else "",
        profile=_profile_index(line),
    )


def _parse_short_line(line: str) -> Kernel | None:
    match = SHORT_LISTING.match(line, max(line.find("Layer("), 0))
    if not match:
        return None
    name = PROFILE.sub("", match["name"])
    return Kernel(name, match["kind"], _fused_layers(name), match["tactic"], _profile_index(line))


def _profile_index(line: str) -> int:
    match = PROFILE.search(line)
    return int(match[1][:6]) if match else 0


def parse_kernel_nodes(metadata: str) -> tuple[str, ...]:
    """Return the nodes of "[ONNX Layer: a][ONNX Layer: b]"; a name may hold brackets itself.

    A network that was made with TensorRT's API may have any other metadata: one text for each layer.
    """
    if NODE_MARK not in metadata:
        texts = (text.strip() for text in re.split("[\x1e\x1f]", metadata.strip()))
        return tuple(dict.fromkeys(text for text in texts if text))[:MAX_NODES]
    parts = metadata.split(NODE_MARK)[1 : MAX_NODES + 1]
    return tuple(dict.fromkeys(part.strip(SEPARATORS).removesuffix("]") for part in parts))


def _fused_layers(name: str) -> tuple[str, ...]:
    """Return the layers that a name such as "Conv_1 + PWN(Relu_2)" joins; those TensorRT made up are left out."""
    parts = (re.sub(r"^PWN\((.*)\)$", r"\1", part.strip()) for part in name.split(" + "))
    made_up = ("(Unnamed Layer*", "{", "[", "Reformatting CopyNode", "ONNXTRT_")
    return tuple(part for part in parts if part and not part.startswith(made_up))


def assign_kernel_profiles(kernels: list[Kernel]) -> list[Kernel]:
    """Return the kernels with their profiles: all of one compiled graph belong to the profile any of them names."""
    profiles = {_myelin_graph(kernel): kernel.profile for kernel in kernels if kernel.profile and _myelin_graph(kernel)}
    return [
        msgspec.structs.replace(kernel, profile=profiles.get(_myelin_graph(kernel), kernel.profile))
        for kernel in kernels
    ]


def _myelin_graph(kernel: Kernel) -> str:
    match = MYELIN_GRAPH.search(kernel.name)
    return match[1] if match else ""
