"""Compose files: each service that starts one of TensorRT-LLM's programs."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.workload.file import Workload, lined_words, shell_faults
from trtdx.inspect.readers.workload.launcher import mounts_of_docker
from trtdx.inspect.readers.workload.surroundings import (
    DEFAULT_SHM,
    SHARED_MEMORY,
    TEMPLATED,
    Mount,
    Surroundings,
    size_in_bytes,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.yaml_documents import YamlDocument

MOST_SERVICES = 64
VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")


def services_of(document: YamlDocument) -> Iterator[Workload]:
    """Yield each service with a command of its own."""
    services = document.data.get("services")
    for name, service in list(services.items() if isinstance(services, dict) else ())[:MOST_SERVICES]:
        if isinstance(service, dict):
            yield _workload(document, str(name), service)


def _workload(document: YamlDocument, name: str, service: dict[str, Any]) -> Workload:
    path = f"services.{name}"
    surroundings = Surroundings(system="compose", unit=f"service {name}", asks_for_gpus=True)
    if isinstance(service.get("image"), str):
        surroundings.image = Fact(_defaulted(service["image"]), document.where(f"{path}.image"))
    _put_environment(surroundings, document, path, service)
    _put_gpus(surroundings, document, path, service)
    _put_limits(surroundings, document, path, service)
    _put_volumes(surroundings, document, service)
    _put_configs(surroundings, document, service)
    _put_ports(surroundings, document, path, service)
    words = [*_words(document, f"{path}.entrypoint", service), *_words(document, f"{path}.command", service)]
    surroundings.no_shell += shell_faults(words, document.where(f"{path}.command"))
    return Workload(name, words, surroundings, document.where(path))


def _items(service: dict[str, Any], key: str) -> list[Any]:
    value = service.get(key)
    return value[:200] if isinstance(value, list) else []


def _words(document: YamlDocument, path: str, service: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the words of a command: compose splits a text as a shell would, and fills in ${NAME:-default}."""
    value = service.get(path.rpartition(".")[2])
    if isinstance(value, list):
        return [(_defaulted(word), line) for word, line in lined_words(document, path, value)]
    if not isinstance(value, str):
        return []
    line = document.line(path) or 1
    try:
        return [(word, line) for word in shlex.split(_defaulted(value))]
    except ValueError:
        return [(word, line) for word in value.split()]


def _defaulted(text: str) -> str:
    """Return a text with the defaults of its variables; $$ is a dollar, and other values stand in an .env file."""
    escaped = text.replace("$$", "\0")
    return VARIABLE.sub(lambda match: TEMPLATED if match[2] is None else match[2], escaped).replace("\0", "$")


def _put_environment(
    around: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]
) -> None:
    variables = service.get("environment")
    pairs = (
        [str(variable).partition("=")[::2] for variable in variables] if isinstance(variables, list) else []
    )
    if isinstance(variables, dict):
        pairs = [(str(name), "" if value is None else str(value)) for name, value in variables.items()]
    for name, value in pairs[:200]:
        around.environment[name] = Fact(_defaulted(value), document.where(f"{path}.environment"))


def _put_gpus(around: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    around.speaks_of_gpus = service.get("runtime") == "nvidia" or "gpus" in service or "devices" in service
    inner = "deploy.resources.reservations.devices"
    devices = document.at(f"{path}.{inner}")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict):
            continue
        around.speaks_of_gpus = True
        ids, count = device.get("device_ids"), whole_number(device.get("count", ""))
        number = len(ids) if isinstance(ids, list) else count
        if number is not None:
            around.gpus = Fact(number, document.where(f"{path}.{inner}"))
    visible = around.environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None:
        around.speaks_of_gpus = True
        listed = re.fullmatch(r"\d+(?:,\d+)*", str(visible.value))
        if listed and around.gpus is None:
            around.gpus = Fact(listed[0].count(",") + 1, visible.where)


def _put_limits(around: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    size = size_in_bytes(_defaulted(str(service.get("shm_size", ""))))
    around.shm = Fact(DEFAULT_SHM, f"{document.where(path)} has no shm_size and no ipc: host")
    if size:
        around.shm = Fact(size, document.where(f"{path}.shm_size"))
    elif "shm_size" in service or str(service.get("ipc", "")).startswith(SHARED_IPC) or _mounts_shm(service):
        around.shm = None
    memlock = document.at(f"{path}.ulimits.memlock")
    soft = memlock.get("soft") if isinstance(memlock, dict) else memlock
    if type(soft) is int:
        around.memlock = Fact(soft, document.where(f"{path}.ulimits.memlock"))
    limit = service.get("mem_limit") or document.at(f"{path}.deploy.resources.limits.memory")
    if limit is not None and size_in_bytes(limit):
        around.memory = Fact(size_in_bytes(limit), document.where(path))


SHARED_IPC = ("host", "service:", "container:")


def _mounts_shm(service: dict[str, Any]) -> bool:
    return SHARED_MEMORY in f"{service.get('tmpfs', '')} {service.get('volumes', '')}"


def _put_volumes(around: Surroundings, document: YamlDocument, service: dict[str, Any]) -> None:
    folder = posixpath.dirname(document.path)
    for volume in _items(service, "volumes"):
        mounts: list[Mount] = []
        if isinstance(volume, str):
            mounts = mounts_of_docker(_defaulted(volume))
        elif isinstance(volume, dict) and volume.get("type") == "bind":
            mounts = [Mount(str(volume.get("target") or ""), _defaulted(str(volume.get("source") or "")))]
        for mount in mounts:
            is_absolute = mount.source.startswith("/")
            inner = posixpath.normpath(posixpath.join(folder, mount.source))
            source = mount.source if is_absolute else inner if inner.startswith("/") else f"./{inner}"
            around.mounts.append(Mount(mount.target, source))


def _put_configs(around: Surroundings, document: YamlDocument, service: dict[str, Any]) -> None:
    """Put configs whose content stands in the same file under the paths they are mounted at."""
    for config in _items(service, "configs"):
        source = config.get("source") if isinstance(config, dict) else config
        target = config.get("target") if isinstance(config, dict) else f"/{config}"
        text = document.at(f"configs.{source}.content")
        if isinstance(text, str) and isinstance(target, str):
            around.files[target] = (text, (document.line(f"configs.{source}.content") or 0) + 1)


def _put_ports(around: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    if service.get("network_mode") == "host":
        return
    for port in [*_items(service, "ports"), *_items(service, "expose")]:
        target = port.get("target") if isinstance(port, dict) else _defaulted(str(port)).rpartition(":")[2]
        number = whole_number(str(target).partition("/")[0])
        around.ports += [number] if number else []
    around.ports_at = document.where(f"{path}.ports")
