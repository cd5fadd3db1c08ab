"""TensorRT plans as artifacts: facts from the header of a plan."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from trtdx.formats.tensorrt.plan_header import (
    FOREIGN,
    LFS_POINTER,
    OVERLONG,
    PRODUCTS,
    TRUNCATED,
    UNREADABLE,
    read_plan_header,
)
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.inspect.readers import ArtifactReader, PathProbe

if TYPE_CHECKING:
    from trtdx.formats.tensorrt.plan_header import PlanHeader
    from trtdx.host import Host


PLAN_SUFFIXES = (".engine", ".plan", ".trt")


FACT_BY_PLAN_FAULT = {
    TRUNCATED: "plan.truncated",
    OVERLONG: "plan.overlong",
    FOREIGN: "plan.foreign",
    LFS_POINTER: "weights.lfs_pointers",
}


def _is_plan(_: Host, probe: PathProbe) -> bool:
    if probe.is_directory:
        return False
    return probe.start[:4] in PRODUCTS or posixpath.splitext(probe.path)[1].lower() in PLAN_SUFFIXES


def _read_plan(host: Host, path: str) -> Artifact:
    """Return one plan file as an artifact."""
    header, facts = read_plan_header(host, path), FactCollector()
    put_plan_facts(facts, {path: header})
    if header.version:
        facts.put("plan.version", header.version, f"{path}: bytes 24 to 27")
    facts.put("plan.stated_bytes", header.stated_bytes, f"{path}: bytes 16 to 23")
    unread = (header.problem,) if header.fault == UNREADABLE else ()
    return Artifact("plan", path, facts.to_dict(), unread=unread)


def put_plan_facts(facts: FactCollector, headers: dict[str, PlanHeader]) -> None:
    """Put what the plans at these paths say, those of all ranks together."""
    for path, header in headers.items():
        name = posixpath.basename(path)
        if header.fault in FACT_BY_PLAN_FAULT:
            fault_text = name if header.fault == LFS_POINTER else f"{name}: {header.problem}"
            facts.add(FACT_BY_PLAN_FAULT[header.fault], fault_text, path)
    sound = {path: header for path, header in headers.items() if header.product}
    if not sound:
        return
    first = next(iter(sound))
    facts.put("plan.bytes", sum(header.bytes for header in sound.values()), first)
    products = sorted({header.product for header in sound.values()})
    facts.put("plan.product", ", ".join(products), f"{first}: bytes 0 to 3")
    versions = sorted({header.version for header in sound.values() if header.version})
    facts.put("plan.versions", versions or None, f"{first}: bytes 24 to 27")
    if len(versions) == 1 and products == ["TensorRT"]:
        facts.put("tensorrt", versions[0], f"{first}: bytes 24 to 27")
    sms = sorted({sm for header in sound.values() for sm in header.sms})
    facts.put("plan.sms", sms or None, f"{first}: properties of the GPU")
    if len({header.sms for header in sound.values() if header.sms}) > 1:
        files = {posixpath.basename(path): list(header.sms) for path, header in sound.items() if header.sms}
        facts.put("plan.sms_of_files", files, f"{posixpath.dirname(first)}: properties of the GPU in each plan")


READER = ArtifactReader(
    "plan", "a TensorRT or TensorRT-RTX plan (a file that begins with ftrt or vtrt)", _is_plan, _read_plan
)
