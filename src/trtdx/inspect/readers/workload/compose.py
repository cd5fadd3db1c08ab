"""Compose files: each service that starts one of TensorRT-LLM's programs."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.workload.launcher import mounts_from_docker_flag
from trtdx.inspect.readers.workload.manifest import ContainerWorkload, shell_faults, words_with_lines
from trtdx.inspect.readers.workload.surroundings import (
    DEFAULT_SHM,
    SHARED_MEMORY,
    UNKNOWN_VALUE,
    HostMount,
    Surroundings,
    parse_small_integer,
    size_in_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.formats.yaml_documents import YamlDocument

MAX_SERVICES = 64
COMPOSE_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)(?::?-([^}]*))?\}?")


def compose_workloads(document: YamlDocument) -> Iterator[ContainerWorkload]:
    """Yield each service with a command of its own."""
    services = document.data.get("services")
    for name, service in list(services.items() if isinstance(services, dict) else ())[:MAX_SERVICES]:
        if isinstance(service, dict):
            yield _workload_of_service(document, str(name), service)


def _workload_of_service(document: YamlDocument, name: str, service: dict[str, Any]) -> ContainerWorkload:
    path = f"services.{name}"
    surroundings = Surroundings(system="compose", unit=f"service {name}", asks_for_gpus=True)
    if isinstance(service.get("image"), str):
        surroundings.image = Fact(_fill_defaults(service["image"]), document.place_of(f"{path}.image"))
    _put_service_environment(surroundings, document, path, service)
    _put_service_gpus(surroundings, document, path, service)
    _put_service_limits(surroundings, document, path, service)
    _put_service_volumes(surroundings, document, service)
    _put_service_configs(surroundings, document, service)
    _put_service_ports(surroundings, document, path, service)
    words = [
        *_command_words(document, f"{path}.entrypoint", service),
        *_command_words(document, f"{path}.command", service),
    ]
    surroundings.no_shell += shell_faults(words, document.place_of(f"{path}.command"))
    return ContainerWorkload(name, words, surroundings, document.place_of(path))


def _list_items(service: dict[str, Any], key: str) -> list[Any]:
    value = service.get(key)
    return value[:200] if isinstance(value, list) else []


def _command_words(document: YamlDocument, path: str, service: dict[str, Any]) -> list[tuple[str, int]]:
    """Return the words of a command: compose splits a text as a shell would, and fills in ${NAME:-default}."""
    value = service.get(path.rpartition(".")[2])
    if isinstance(value, list):
        return [(_fill_defaults(word), line) for word, line in words_with_lines(document, path, value)]
    if not isinstance(value, str):
        return []
    line = document.line_of(path) or 1
    try:
        return [(word, line) for word in shlex.split(_fill_defaults(value))]
    except ValueError:
        return [(word, line) for word in value.split()]


def _fill_defaults(text: str) -> str:
    """Return a text with the defaults of its variables; $$ is a dollar, and other values stand in an .env file."""
    escaped = text.replace("$$", "\0")
    return COMPOSE_VARIABLE.sub(lambda match: UNKNOWN_VALUE if match[2] is None else match[2], escaped).replace(
        "\0", "$"
    )


def _put_service_environment(
    surroundings: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]
) -> None:
    variables = service.get("environment")
    pairs = [str(variable).partition("=")[::2] for variable in variables] if isinstance(variables, list) else []
    if isinstance(variables, dict):
        pairs = [(str(name), "" if value is None else str(value)) for name, value in variables.items()]
    for name, value in pairs[:200]:
        surroundings.environment[name] = Fact(_fill_defaults(value), document.place_of(f"{path}.environment"))


def _put_service_gpus(surroundings: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    surroundings.speaks_of_gpus = service.get("runtime") == "nvidia" or "gpus" in service or "devices" in service
    inner = "deploy.resources.reservations.devices"
    devices = document.value_at(f"{path}.{inner}")
    for device in devices if isinstance(devices, list) else []:
        if not isinstance(device, dict):
            continue
        surroundings.speaks_of_gpus = True
        ids, count = device.get("device_ids"), parse_small_integer(device.get("count", ""))
        number = len(ids) if isinstance(ids, list) else count
        if number is not None:
            surroundings.gpus = Fact(number, document.place_of(f"{path}.{inner}"))
    visible = surroundings.environment.get("NVIDIA_VISIBLE_DEVICES")
    if visible is not None:
        surroundings.speaks_of_gpus = True
        listed = re.fullmatch(r"\d+(?:,\d+)*", str(visible.value))
        if listed and surroundings.gpus is None:
            surroundings.gpus = Fact(listed[0].count(",") + 1, visible.where)


def _put_service_limits(surroundings: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    size = size_in_bytes(_fill_defaults(str(service.get("shm_size", ""))))
    surroundings.shm = Fact(DEFAULT_SHM, f"{document.place_of(path)} has no shm_size and no ipc: host")
    if size:
        surroundings.shm = Fact(size, document.place_of(f"{path}.shm_size"))
    elif "shm_size" in service or str(service.get("ipc", "")).startswith(SHARED_IPC_MODES) or _mounts_shm(service):
        surroundings.shm = None
    memlock = document.value_at(f"{path}.ulimits.memlock")
    soft = memlock.get("soft") if isinstance(memlock, dict) else memlock
    if type(soft) is int:
        surroundings.memlock = Fact(soft, document.place_of(f"{path}.ulimits.memlock"))
    limit = service.get("mem_limit") or document.value_at(f"{path}.deploy.resources.limits.memory")
    if limit is not None and size_in_bytes(limit):
        surroundings.memory = Fact(size_in_bytes(limit), document.place_of(path))


SHARED_IPC_MODES = ("host", "service:", "container:")


def _mounts_shm(service: dict[str, Any]) -> bool:
    return SHARED_MEMORY in f"{service.get('tmpfs', '')} {service.get('volumes', '')}"


def _put_service_volumes(surroundings: Surroundings, document: YamlDocument, service: dict[str, Any]) -> None:
    folder = posixpath.dirname(document.path)
    for volume in _list_items(service, "volumes"):
        mounts: list[HostMount] = []
        if isinstance(volume, str):
            mounts = mounts_from_docker_flag(_fill_defaults(volume))
        elif isinstance(volume, dict) and volume.get("type") == "bind":
            mounts = [HostMount(str(volume.get("target") or ""), _fill_defaults(str(volume.get("source") or "")))]
        for mount in mounts:
            is_absolute = mount.source.startswith("/")
            inner = posixpath.normpath(posixpath.join(folder, mount.source))
            source = mount.source if is_absolute else inner if inner.startswith("/") else f"./{inner}"
            surroundings.mounts.append(HostMount(mount.target, source))


def _put_service_configs(surroundings: Surroundings, document: YamlDocument, service: dict[str, Any]) -> None:
    """Put configs whose content stands in the same file under the paths they are mounted at."""
    for config in _list_items(service, "configs"):
        source = config.get("source") if isinstance(config, dict) else config
        target = config.get("target") if isinstance(config, dict) else f"/{config}"
        text = document.value_at(f"configs.{source}.content")
        if isinstance(text, str) and isinstance(target, str):
            surroundings.files[target] = (text, (document.line_of(f"configs.{source}.content") or 0) + 1)


def _put_service_ports(surroundings: Surroundings, document: YamlDocument, path: str, service: dict[str, Any]) -> None:
    if service.get("network_mode") == "host":
        return
    for port in [*_list_items(service, "ports"), *_list_items(service, "expose")]:
        target = port.get("target") if isinstance(port, dict) else _fill_defaults(str(port)).rpartition(":")[2]
        number = parse_small_integer(str(target).partition("/")[0])
        surroundings.ports += [number] if number else []
    surroundings.ports_place = document.place_of(f"{path}.ports")
