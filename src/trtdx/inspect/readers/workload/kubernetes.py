"""Kubernetes manifests: every container that starts one of TensorRT-LLM's programs, with what its pod gives it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.artifact import Fact
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

MAX_DEPTH = 12
MAX_CONTAINERS = 64
GPU_RESOURCE = "nvidia.com/gpu"
PROBE_KEYS = ("readinessProbe", "livenessProbe", "startupProbe")


class PodSpec:
    """A pod's specification somewhere in a document, and what stands around it."""

    def __init__(self, manifest: KubernetesManifest, document: YamlDocument, path: str, spec: dict[str, Any]) -> None:
        self.manifest, self.document, self.path, self.spec = manifest, document, path, spec

    def place_of(self, inner: str) -> str:
        return self.document.place_of(f"{self.path}.{inner}" if self.path else inner)


class KubernetesManifest:
    """The documents of one file."""

    def __init__(self, documents: list[YamlDocument]) -> None:
        self.documents = documents
        self.maps = {
            name: document for document in documents if (name := _resource_name(document, "ConfigMap", "Secret"))
        }

    def workloads(self) -> Iterator[ContainerWorkload]:
        """Yield each container with a command, in the order they stand in."""
        count = 0
        for document in self.documents:
            for path, spec in iterate_pod_specs(document.data):
                pod = PodSpec(self, document, path, spec)
                for at, container in enumerate(_list_or_empty(spec.get("containers"))):
                    count += 1
                    if count <= MAX_CONTAINERS and isinstance(container, dict):
                        yield workload_of_container(pod, container, f"containers[{at}]")


def _resource_name(document: YamlDocument, *kinds: str) -> str:
    return str(document.value_at("metadata.name") or "") if document.value_at("kind") in kinds else ""


def iterate_pod_specs(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every table with a list of containers, whatever kind of resource it stands in."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, list):
        for at, item in enumerate(value[:200]):
            yield from iterate_pod_specs(item, f"{path}[{at}]", depth + 1)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        yield path, value
        return
    for key, inner in value.items():
        yield from iterate_pod_specs(inner, f"{path}.{key}" if path else str(key), depth + 1)


def workload_of_container(pod: PodSpec, container: dict[str, Any], inner: str) -> ContainerWorkload:
    """Return a container's command and what it runs in."""
    kind, name = str(pod.document.value_at("kind") or "pod"), str(container.get("name") or inner)
    resource = str(pod.document.value_at("metadata.name") or "")
    unit = f"{kind} {resource}, container {name}"
    surroundings = Surroundings(system=f"Kubernetes {kind}", unit=unit, asks_for_gpus=True)
    if isinstance(container.get("image"), str):
        surroundings.image = Fact(container["image"], pod.place_of(f"{inner}.image"))
    _put_container_environment(surroundings, pod, container, inner)
    _put_container_resources(surroundings, pod, container, inner)
    _put_container_volumes(surroundings, pod, container, inner)
    _put_container_ports(surroundings, pod, container, inner)
    _put_node_count(surroundings, pod)
    words = [
        *words_with_lines(pod.document, f"{pod.path}.{inner}.command", container.get("command")),
        *words_with_lines(pod.document, f"{pod.path}.{inner}.args", container.get("args")),
    ]
    surroundings.no_shell += shell_faults(
        words, pod.place_of(f"{inner}.command" if container.get("command") else inner)
    )
    _put_refused_words(surroundings, pod, container, inner)
    environment = {key: str(fact.value) for key, fact in surroundings.environment.items()}
    expanded = [(_expand_variables(word, environment), line) for word, line in words]
    return ContainerWorkload(name, expanded, surroundings, pod.place_of(inner))


def _expand_variables(word: str, environment: dict[str, str]) -> str:
    """Return a word with $(NAME) replaced, as Kubernetes does; values of secrets and fields are not known."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], UNKNOWN_VALUE), word)


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _put_refused_words(surroundings: Surroundings, pod: PodSpec, container: dict[str, Any], inner: str) -> None:
    """Put numbers and truth values among command and args: the API server takes texts only."""
    for key in ("command", "args"):
        value = container.get(key)
        if isinstance(value, str):
            surroundings.refused.append(Fact(f"{key} is a text, but must be a list", pod.place_of(f"{inner}.{key}")))
        wrong = [word for word in _list_or_empty(value) if not isinstance(word, str)]
        if wrong:
            surroundings.refused.append(
                Fact(f"{key} holds {wrong[0]}, which is not text: quote it", pod.place_of(f"{inner}.{key}"))
            )


def _put_container_environment(surroundings: Surroundings, pod: PodSpec, container: dict[str, Any], inner: str) -> None:
    for at, entry in enumerate(_list_or_empty(container.get("env"))[:200]):
        name, value = _dict_or_empty(entry).get("name"), _dict_or_empty(entry).get("value")
        if not isinstance(name, str) or value is None:
            continue
        where = pod.place_of(f"{inner}.env[{at}].value")
        if not isinstance(value, str):
            surroundings.refused.append(Fact(f"env {name} is {value}, which is not text: quote it", where))
        surroundings.environment[name] = Fact(str(value), where)


def _put_container_resources(surroundings: Surroundings, pod: PodSpec, container: dict[str, Any], inner: str) -> None:
    resources = _dict_or_empty(container.get("resources"))
    limits, requests = _dict_or_empty(resources.get("limits")), _dict_or_empty(resources.get("requests"))
    where = pod.place_of(f"{inner}.resources.limits.{GPU_RESOURCE}")
    if GPU_RESOURCE in limits and parse_small_integer(limits[GPU_RESOURCE]) is not None:
        surroundings.gpus = Fact(parse_small_integer(limits[GPU_RESOURCE]), where)
    elif GPU_RESOURCE in requests and GPU_RESOURCE not in limits:
        words = f"{GPU_RESOURCE} stands under requests only: GPUs must be under limits"
        surroundings.refused.append(Fact(words, pod.place_of(f"{inner}.resources.requests")))
    if GPU_RESOURCE in limits and GPU_RESOURCE in requests and str(limits[GPU_RESOURCE]) != str(requests[GPU_RESOURCE]):
        surroundings.refused.append(Fact(f"{GPU_RESOURCE} differs between requests and limits", where))
    spoken = [str(key) for key in (*limits, *requests) if "gpu" in str(key) or "mig-" in str(key)]
    claims = resources.get("claims") or pod.spec.get("resourceClaims") or pod.spec.get("runtimeClassName")
    visible = "NVIDIA_VISIBLE_DEVICES" in surroundings.environment
    surroundings.speaks_of_gpus = bool(spoken or claims or visible)
    size = size_in_bytes(limits.get("memory", ""))
    if size:
        surroundings.memory = Fact(size, pod.place_of(f"{inner}.resources.limits.memory"))


def _put_container_volumes(surroundings: Surroundings, pod: PodSpec, container: dict[str, Any], inner: str) -> None:
    volumes = {
        _dict_or_empty(volume).get("name"): _dict_or_empty(volume)
        for volume in _list_or_empty(pod.spec.get("volumes"))[:200]
    }
    surroundings.shm = Fact(DEFAULT_SHM, f"{pod.place_of(inner)} mounts no memory at /dev/shm")
    if pod.spec.get("hostIPC") is True:
        surroundings.shm = None
    for mount in map(_dict_or_empty, _list_or_empty(container.get("volumeMounts"))[:200]):
        volume, target = volumes.get(mount.get("name"), {}), str(mount.get("mountPath") or "").rstrip("/")
        if target == SHARED_MEMORY:
            surroundings.shm = _shared_memory_size(pod, volume)
        source = _dict_or_empty(volume.get("hostPath")).get("path")
        if isinstance(source, str):
            surroundings.mounts.append(HostMount(target, source))
        _put_config_map_files(surroundings, pod.manifest, volume, mount)


def _shared_memory_size(pod: PodSpec, volume: dict[str, Any]) -> Fact | None:
    """Return the size of a volume at /dev/shm, where it has one that is known."""
    size = size_in_bytes(_dict_or_empty(volume.get("emptyDir")).get("sizeLimit", ""))
    return Fact(size, pod.place_of("volumes")) if size else None


def _put_config_map_files(
    surroundings: Surroundings, manifest: KubernetesManifest, volume: dict[str, Any], mount: dict[str, Any]
) -> None:
    """Put the files of a ConfigMap in the same manifest under the paths they are mounted at."""
    source = _dict_or_empty(volume.get("configMap"))
    document = manifest.maps.get(str(source.get("name") or ""))
    data = _dict_or_empty(document.value_at("data")) if document else {}
    renamed = {
        _dict_or_empty(item).get("key"): _dict_or_empty(item).get("path")
        for item in _list_or_empty(source.get("items"))
    }
    folder = str(mount.get("mountPath") or "").rstrip("/")
    for key, text in data.items():
        if not isinstance(text, str) or document is None or (renamed and key not in renamed):
            continue
        line = (document.line_of(f"data.{key}") or 0) + 1
        alone = mount.get("subPath") is not None and mount["subPath"] in (key, renamed.get(key))
        surroundings.files[folder if alone else f"{folder}/{renamed.get(key) or key}"] = (text, line)


def _put_container_ports(surroundings: Surroundings, pod: PodSpec, container: dict[str, Any], inner: str) -> None:
    """Put the ports that a probe, a declared port or a service of the same file leads to."""
    names = {
        str(_dict_or_empty(port).get("name")): parse_small_integer(_dict_or_empty(port).get("containerPort"))
        or _dict_or_empty(port).get("containerPort")
        for port in _list_or_empty(container.get("ports"))
    }
    called_ports: list[Any] = list(names.values())
    for probe in PROBE_KEYS:
        check = _dict_or_empty(container.get(probe))
        for kind in ("httpGet", "tcpSocket", "grpc"):
            port = _dict_or_empty(check.get(kind)).get("port")
            if port is None:
                continue
            called_ports.append(names.get(str(port)) or parse_small_integer(port) or port)
            if isinstance(called_ports[-1], int):
                surroundings.callers[probe] = called_ports[-1]
    if len(_list_or_empty(pod.spec.get("containers"))) == 1:
        surroundings.callers |= {
            name: port
            for name, target_port in _services_of_pod(pod)
            if (port := names.get(str(target_port)) or parse_small_integer(target_port))
        }
    surroundings.ports = (
        [] if UNKNOWN_VALUE in str(called_ports) else [port for port in called_ports if isinstance(port, int)]
    )
    if surroundings.ports:
        surroundings.ports_place = pod.place_of(f"{inner}.ports" if container.get("ports") else inner)
    if pod.spec.get("hostNetwork") is True and not any(container.get(probe) for probe in PROBE_KEYS):
        surroundings.ports = []


def _services_of_pod(pod: PodSpec) -> Iterator[tuple[str, Any]]:
    """Yield the services of the same file that select a pod, each with the port of the pod that it calls."""
    above = pod.path.rpartition("spec")[0]
    labels = _dict_or_empty(pod.document.value_at(f"{above}metadata.labels"))
    for document in pod.manifest.documents:
        selector = _dict_or_empty(document.value_at("spec.selector"))
        if document.value_at("kind") != "Service" or not selector or not selector.items() <= labels.items():
            continue
        for port in map(_dict_or_empty, _list_or_empty(document.value_at("spec.ports"))):
            yield f"Service {document.value_at('metadata.name')}", port.get("targetPort") or port.get("port")


def _put_node_count(surroundings: Surroundings, pod: PodSpec) -> None:
    """Put how many pods work together: a LeaderWorkerSet's group, or the workers of an MPIJob."""
    size = parse_small_integer(pod.document.value_at("spec.leaderWorkerTemplate.size") or "")
    workers = pod.document.value_at("spec.mpiReplicaSpecs.Worker")
    if size:
        surroundings.nodes = Fact(size, pod.document.place_of("spec.leaderWorkerTemplate.size"))
    elif isinstance(workers, dict) and ".Launcher." in pod.path:
        count = parse_small_integer(workers.get("replicas", 1)) or 1
        surroundings.nodes = Fact(count, pod.document.place_of("spec.mpiReplicaSpecs.Worker.replicas"))
        surroundings.gpus, surroundings.shm = _worker_gpus(pod, workers), None
        surroundings.speaks_of_gpus = True


def _worker_gpus(pod: PodSpec, workers: dict[str, Any]) -> Fact | None:
    """Return the GPUs of an MPIJob's workers, which its launcher has none of."""
    for path, spec in iterate_pod_specs(workers, "spec.mpiReplicaSpecs.Worker"):
        for container in map(_dict_or_empty, _list_or_empty(spec.get("containers"))):
            count = parse_small_integer(
                _dict_or_empty(_dict_or_empty(container.get("resources")).get("limits")).get(GPU_RESOURCE, "")
            )
            if count:
                return Fact(count, pod.document.place_of(path))
    return None
