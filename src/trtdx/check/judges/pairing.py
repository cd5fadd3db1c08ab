"""What belongs together and is not: CUDA of torch, parts of TensorRT, driver, GPU and image against the release."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from trtdx.check.nouns import Cause, InstalledDistribution, MendingOrder
from trtdx.check.view import make_evidence, version_or_none
from trtdx.knowledge.inventory import product_releases
from trtdx.knowledge.versions import (
    at_least,
    kernels_of,
    nearest_release,
    parse_release,
    sm_from,
    tensorrt_of,
    version_table,
)
from trtdx.knowledge.violation import Violation
from trtdx.model import Severity
from trtdx.words import join_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.check.view import EnvironmentView

LEAST_DRIVER = {11: 450, 12: 525, 13: 580}  # the branch that first runs a CUDA major version
# PyTorch has builds for some CUDA versions only.
TORCH_INDEXES = (((13, 0), "cu130"), ((12, 8), "cu128"), ((12, 6), "cu126"), ((12, 4), "cu124"), ((0, 0), "cu121"))
FIRST_WITH_MODELOPT = "0.10"


def judge_pairing(view: EnvironmentView) -> Iterator[Cause]:
    """Yield what does not belong together."""
    yield from _judge_torch_cuda(view)
    yield from _judge_tensorrt_parts(view)
    yield from _judge_tensorrt_cuda(view)
    yield from _judge_renamed(view)
    yield from _judge_module_versions(view)
    yield from _judge_triton_image(view)
    yield from _judge_gpus(view)


def cuda_of_release(view: EnvironmentView) -> int:
    """Return the CUDA major version that the installed TensorRT-LLM was made with; 0 where it is not known."""
    version = parse_release(view.release) if view.release else None
    newest = parse_release(product_releases()[-1])
    if version is None or newest is None or version > newest:
        return 0
    row = nearest_release(view.release)
    return int(row.cuda.split(".")[0]) if row else 0


def cuda_of_torch(view: EnvironmentView) -> tuple[str, str]:
    """Return the CUDA that torch was made with ("12", "cpu" or nothing), and what tells."""
    torch = view.in_force.get("torch")
    if not torch:
        return "", ""
    local = re.search(r"\+(cpu|cu(\d\d)\d+)", torch.version)
    if local:
        return local[2] or "cpu", torch.version
    requires = [match for text in torch.requires if (match := re.match(r"nvidia-[\w-]+-cu(\d\d)\b", text))]
    return (requires[0][1], requires[0][0]) if requires else ("", "")


def _judge_torch_cuda(view: EnvironmentView) -> Iterator[Cause]:
    torch, built, wanted_major = view.in_force.get("torch"), cuda_of_torch(view), cuda_of_release(view)
    if not torch or not built[0] or not wanted_major or built[0] == str(wanted_major):
        return
    evidence = (
        make_evidence(torch.info_path, f"{torch.title} ({built[1]})"),
        make_evidence(f"TensorRT-LLM {view.release}", f"made with CUDA {wanted_major}"),
    )
    about = frozenset({"torch", *torch.top_modules[:3], "tensorrt-llm"})
    if built[0] == "cpu":
        values = {"torch": torch.title, "release": view.release, "pip": view.pip, "index": _torch_index(view)}
        values["version"] = torch.version.partition("+")[0]
        yield Cause("DX078", Violation(evidence, values), MendingOrder.PAIRING, about)
        return
    values = {
        "torch": torch.title, "build": f"CUDA {built[0]}", "release": view.release, "wish": f"CUDA {wanted_major}",
        "version": torch.version.partition("+")[0], "index": _torch_index(view), "pip": view.pip,
    }  # fmt: skip
    severity = Severity.ERROR if at_least(view.release, "1.2") or wanted_major == 12 else Severity.WARNING
    yield Cause("DX1021", Violation(evidence, values, severity), MendingOrder.PAIRING, about)


def _torch_index(view: EnvironmentView) -> str:
    """Return the folder of PyTorch's index with builds for the release's CUDA, or the nearest before it."""
    row = nearest_release(view.release)
    major, minor = (int(part) for part in (row.cuda if row else "13.0").split(".")[:2])
    return next(name for least, name in TORCH_INDEXES if (major, minor) >= least)


def _tensorrt_parts(view: EnvironmentView) -> list[InstalledDistribution]:
    return [copy for key, copy in view.in_force.items() if re.fullmatch(r"tensorrt(-cu\d\d)?(-libs|-bindings)?", key)]


def _judge_tensorrt_parts(view: EnvironmentView) -> Iterator[Cause]:
    """Yield packages of TensorRT that are of different versions."""
    parts = _tensorrt_parts(view)
    releases = {version.release[:3] for part in parts if (version := version_or_none(part.version))}
    if len(releases) < 2:
        return
    evidence = tuple(make_evidence(part.info_path, part.title) for part in parts)
    paired = tensorrt_of(view.release) if view.release else ""
    values = {
        "parts": join_words(part.title for part in parts),
        "pip": view.pip,
        "remove": view.uninstall,
        "wish": f"tensorrt=={paired}" if paired else "tensorrt",
        "uninstall": " ".join(part.name for part in parts),
    }
    severity = (
        Severity.WARNING
        if "tensorrt" in view.working_modules and len({p[:2] for p in releases}) < 2
        else Severity.ERROR
    )
    about = frozenset({*(part.key for part in parts), "tensorrt", "tensorrt_libs", "tensorrt_bindings"})
    symptom = "the parts of TensorRT are of different versions"
    yield Cause("DX030", Violation(evidence, values, severity), MendingOrder.PAIRING, about, symptom)


def _judge_tensorrt_cuda(view: EnvironmentView) -> Iterator[Cause]:
    """Yield a TensorRT for another CUDA than the release."""
    wanted_major = cuda_of_release(view)
    for part in _tensorrt_parts(view):
        match = re.match(r"tensorrt-cu(\d\d)", part.key)
        if match and wanted_major and match[1] != str(wanted_major) and at_least(view.release, "0.11"):
            values = {
                "package": part.name, "version": part.version, "requirer": f"TensorRT-LLM {view.release}", "others": f": it is made for CUDA {wanted_major}, and this one is for CUDA {match[1]}",
                "wish": part.name.replace(f"cu{match[1]}", f"cu{wanted_major}"), "pip": view.pip,
                "specifier": "",
            }  # fmt: skip
            evidence = (
                make_evidence(part.info_path, part.title),
                make_evidence(f"TensorRT-LLM {view.release}", f"made with CUDA {wanted_major}"),
            )
            about, symptom = frozenset({part.key, "tensorrt"}), f"{part.title} is for another CUDA"
            yield Cause("DX1100", Violation(evidence, values), MendingOrder.PAIRING, about, symptom)
            return


def _judge_renamed(view: EnvironmentView) -> Iterator[Cause]:
    ammo = view.in_force.get("nvidia-ammo")
    if ammo and view.release and at_least(view.release, FIRST_WITH_MODELOPT) and "nvidia-modelopt" not in view.in_force:
        values = {"package": ammo.title, "release": view.release, "pip": view.pip}
        yield Cause(
            "DX013",
            Violation((make_evidence(ammo.info_path, ammo.title),), values),
            MendingOrder.PAIRING,
            frozenset({"nvidia-ammo"}),
        )


def _judge_module_versions(view: EnvironmentView) -> Iterator[Cause]:
    """Yield modules that state another version than the metadata beside them."""
    stated_versions = {name: pair for trial in view.record.trials for name, pair in trial.versions.items()}
    for module in ("torch", "transformers", "numpy", "tensorrt", "tensorrt_llm"):
        text, path = stated_versions.get(module, ("", ""))
        owner = view.owner_of_path(path) if path else None
        stated, recorded = version_or_none(text), version_or_none(owner.version) if owner else None
        if owner is None or not stated or not recorded or stated.release[:2] == recorded.release[:2]:
            continue
        if sum((copy.folder, copy.key) == (owner.folder, owner.key) for copy in view.distributions) > 1:
            continue  # recorded twice, which is a cause of its own
        values = {
            "package": owner.title, "what": f"its code says it is {text}", "pip": view.pip,
            "reinstall": f"{owner.name}=={owner.version}",
        }  # fmt: skip
        evidence = (
            make_evidence(path, f"{module}.__version__ = {text}"),
            make_evidence(owner.info_path, f"Version: {owner.version}"),
        )
        yield Cause("DX061", Violation(evidence, values), MendingOrder.DAMAGE, frozenset({owner.key, module}))


def _judge_triton_image(view: EnvironmentView) -> Iterator[Cause]:
    """Yield a Triton server whose image carries another TensorRT-LLM than the one installed."""
    server = view.record.machine.triton_image.strip()
    tags = _triton_tags()
    tag = tags.get(server, "")
    carried = version_table().triton.get(tag, "")
    if not carried or not view.release or parse_release(carried) == parse_release(view.release):
        return
    owner = view.in_force["tensorrt-llm"]
    values = {
        "package": owner.name, "version": owner.version, "requirer": f"the Triton image {tag} (server {server})", "others": "",
        "wish": f"tensorrt_llm=={carried}", "specifier": f"=={carried}", "pip": view.pip,
    }  # fmt: skip
    evidence = (make_evidence("/opt/tritonserver/TRITON_VERSION", server), make_evidence(owner.info_path, owner.title))
    yield Cause("DX1100", Violation(evidence, values), MendingOrder.PAIRING, frozenset({"tensorrt-llm"}))


def _triton_tags() -> dict[str, str]:
    """Return the image tag of each server version: 2.38.0 is 23.09, and each month has the next one."""
    tags, year, month = {}, 23, 9
    for version in product_releases("Triton"):
        if version.endswith(".0"):
            tags[version] = f"{year}.{month:02}"
            year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return tags


def _judge_gpus(view: EnvironmentView) -> Iterator[Cause]:
    machine = view.record.machine
    if not machine.gpus:
        return
    major = cuda_of_release(view) or _torch_major(view)
    branch = int(machine.driver.split(".")[0]) if machine.driver.split(".")[0].isdigit() else 0
    least = LEAST_DRIVER.get(major, 0)
    if branch and branch < least:
        values = {"driver": machine.driver, "least": least, "cuda": f"CUDA {major}"}
        evidence = (make_evidence("nvidia-smi", f"driver {machine.driver}"),)
        yield Cause("DX032", Violation(evidence, values), MendingOrder.PAIRING, frozenset({"driver"}))
    kernels = kernels_of(view.release) if view.release else None
    for gpu in {gpu.capability: gpu for gpu in machine.gpus}.values():
        sm = sm_from(gpu.capability)
        if kernels and sm and not kernels.serve(sm):
            listed = ", ".join(f"{number // 10}.{number % 10}" for number in kernels.sm)
            values = {
                "gpu": gpu.name, "sm": gpu.capability, "runtime": view.release, "listed": listed,
                "releases": "another release may have",
            }  # fmt: skip
            evidence = (make_evidence("nvidia-smi", f"{gpu.name}, compute capability {gpu.capability}"),)
            yield Cause("DX060", Violation(evidence, values), MendingOrder.PAIRING, frozenset({"gpu"}))


def _torch_major(view: EnvironmentView) -> int:
    built, _ = cuda_of_torch(view)
    return int(built) if built.isdigit() else 0
