"""The machine a deployment is meant for, as the user names it."""

from __future__ import annotations

import difflib

from trtdx.errors import InputError, UnknownNameError
from trtdx.inspect.facts.artifact import Artifact, FactCollector
from trtdx.knowledge.versions import (
    container_tag,
    gpu_names,
    releases_on,
    sm_from,
    sm_of_gpu,
    stated_release,
    tensorrt_of,
    version_table,
)


def machine_from_flags(*, runtime: str = "", gpu: str = "", gpus: int = 0) -> Artifact | None:
    """Return the machine named on the command line, or None where nothing was said of it."""
    if not (runtime or gpu or gpus):
        return None
    facts = FactCollector()
    if runtime:
        release = _parse_release(runtime)
        facts.put("gpu.runtime", release, "--runtime")
        facts.put("gpu.tensorrt", tensorrt_of(release) or None, f"TensorRT of release {release}")
    if gpu:
        facts.put("gpu.name", gpu if sm_from(gpu) is None else None, "--gpu")
        facts.put("gpu.sm", _sm_of_gpu(gpu), f"--gpu {gpu}")
    if gpus:
        facts.put("gpu.count", gpus, "--gpus")
    return Artifact("machine", "this machine", facts.to_dict())


def _parse_release(text: str) -> str:
    release = stated_release(text)
    if release:
        return release
    tag = container_tag(text)
    if not tag:
        newest = version_table().release[-1].version
        raise InputError(
            f"--runtime {text!r} is not a TensorRT-LLM release", fix=f"name one, such as 1.2.1 or {newest}"
        )
    on_it = releases_on(tag)
    images_hint = f"TensorRT-LLM {' and '.join(on_it)} has its own images on this base; " if on_it else ""
    raise InputError(
        f"--runtime {text!r} is the tag of a container, not a TensorRT-LLM release",
        fix=f"{images_hint}which release an image holds: docker run --rm IMAGE pip show tensorrt_llm",
    )


def _sm_of_gpu(gpu: str) -> int:
    sm = sm_of_gpu(gpu)
    if sm is None:
        problem = UnknownNameError("GPU", gpu, ())
        near = _similar_gpus(gpu)
        problem.fix = f"did you mean {' or '.join(near)}?" if near else "name one, such as L40S, or its SM: 89"
        raise problem
    return sm


def _similar_gpus(gpu: str) -> list[str]:
    """Return the GPUs somebody may have meant: those with all the words, then those spelt alike."""
    names = {name.lower(): name for name in gpu_names()}
    words = gpu.lower().split()
    having = [name for low, name in names.items() if words and all(word in low for word in words)]
    alike = difflib.get_close_matches(gpu.lower(), list(names), n=3, cutoff=0.5)
    return list(dict.fromkeys([*having, *(names[low] for low in alike)]))[:4]
