"""Kubernetes manifests: every container that starts one of TensorRT-LLM's programs, with what its pod gives it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from trtdx.inspect.facts.artifact import Fact
from trtdx.inspect.readers.workload.file import Workload, lined_words, shell_faults
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

MOST_DEPTH = 12
MOST_CONTAINERS = 64
GPU = "nvidia.com/gpu"
PROBES = ("readinessProbe", "livenessProbe", "startupProbe")


class Pod:
    """A pod's specification somewhere in a document, and what stands around it."""

    def __init__(self, manifest: Manifest, document: YamlDocument, path: str, spec: dict[str, Any]) -> None:
        self.manifest, self.document, self.path, self.spec = manifest, document, path, spec

    def at(self, inner: str) -> str:
        return self.document.where(f"{self.path}.{inner}" if self.path else inner)


class Manifest:
    """The documents of one file."""

    def __init__(self, documents: list[YamlDocument]) -> None:
        self.documents = documents
        self.maps = {
            name: document for document in documents if (name := _named(document, "ConfigMap", "Secret"))
        }

    def workloads(self) -> Iterator[Workload]:
        """Yield each container with a command, in the order they stand in."""
        count = 0
        for document in self.documents:
            for path, spec in pod_specs(document.data):
                pod = Pod(self, document, path, spec)
                for at, container in enumerate(_listed(spec.get("containers"))):
                    count += 1
                    if count <= MOST_CONTAINERS and isinstance(container, dict):
                        yield workload(pod, container, f"containers[{at}]")


def _named(document: YamlDocument, *kinds: str) -> str:
    return str(document.at("metadata.name") or "") if document.at("kind") in kinds else ""


def pod_specs(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every table with a list of containers, whatever kind of resource it stands in."""
    if depth > MOST_DEPTH:
        return
    if isinstance(value, list):
        for at, item in enumerate(value[:200]):
            yield from pod_specs(item, f"{path}[{at}]", depth + 1)
    if not isinstance(value, dict):
        return
    if isinstance(value.get("containers"), list):
        yield path, value
        return
    for key, inner in value.items():
        yield from pod_specs(inner, f"{path}.{key}" if path else str(key), depth + 1)


def workload(pod: Pod, container: dict[str, Any], inner: str) -> Workload:
    """Return a container's command and what it runs in."""
    kind, name = str(pod.document.at("kind") or "pod"), str(container.get("name") or inner)
    resource = str(pod.document.at("metadata.name") or "")
    unit = f"{kind} {resource}, container {name}"
    surroundings = Surroundings(system=f"Kubernetes {kind}", unit=unit, asks_for_gpus=True)
    if isinstance(container.get("image"), str):
        surroundings.image = Fact(container["image"], pod.at(f"{inner}.image"))
    _put_environment(surroundings, pod, container, inner)
    _put_resources(surroundings, pod, container, inner)
    _put_volumes(surroundings, pod, container, inner)
    _put_ports(surroundings, pod, container, inner)
    _put_nodes(surroundings, pod)
    words = [
        *lined_words(pod.document, f"{pod.path}.{inner}.command", container.get("command")),
        *lined_words(pod.document, f"{pod.path}.{inner}.args", container.get("args")),
    ]
    surroundings.no_shell += shell_faults(
        words, pod.at(f"{inner}.command" if container.get("command") else inner)
    )
    _put_refused_words(surroundings, pod, container, inner)
    environment = {key: str(fact.value) for key, fact in surroundings.environment.items()}
    expanded = [(_expanded(word, environment), line) for word, line in words]
    return Workload(name, expanded, surroundings, pod.at(inner))


def _expanded(word: str, known: dict[str, str]) -> str:
    """Return a word with $(NAME) replaced, as Kubernetes does; values of secrets and fields are not known."""
    return re.sub(r"\$\((\w+)\)", lambda match: known.get(match[1], TEMPLATED), word)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _put_refused_words(around: Surroundings, pod: Pod, container: dict[str, Any], inner: str) -> None:
    """Put numbers and truth values among command and args: the API server takes texts only."""
    for key in ("command", "args"):
        value = container.get(key)
        if isinstance(value, str):
            around.refused.append(Fact(f"{key} is a text, but must be a list", pod.at(f"{inner}.{key}")))
        wrong = [word for word in _listed(value) if not isinstance(word, str)]
        if wrong:
            around.refused.append(
                Fact(f"{key} holds {wrong[0]}, which is not text: quote it", pod.at(f"{inner}.{key}"))
            )


def _put_environment(around: Surroundings, pod: Pod, container: dict[str, Any], inner: str) -> None:
    for at, entry in enumerate(_listed(container.get("env"))[:200]):
        name, value = _table(entry).get("name"), _table(entry).get("value")
        if not isinstance(name, str) or value is None:
            continue
        where = pod.at(f"{inner}.env[{at}].value")
        if not isinstance(value, str):
            around.refused.append(Fact(f"env {name} is {value}, which is not text: quote it", where))
        around.environment[name] = Fact(str(value), where)


def _put_resources(around: Surroundings, pod: Pod, container: dict[str, Any], inner: str) -> None:
    resources = _table(container.get("resources"))
    limits, requests = _table(resources.get("limits")), _table(resources.get("requests"))
    where = pod.at(f"{inner}.resources.limits.{GPU}")
    if GPU in limits and whole_number(limits[GPU]) is not None:
        around.gpus = Fact(whole_number(limits[GPU]), where)
    elif GPU in requests and GPU not in limits:
        words = f"{GPU} stands under requests only: GPUs must be under limits"
        around.refused.append(Fact(words, pod.at(f"{inner}.resources.requests")))
    if GPU in limits and GPU in requests and str(limits[GPU]) != str(requests[GPU]):
        around.refused.append(Fact(f"{GPU} differs between requests and limits", where))
    spoken = [str(key) for key in (*limits, *requests) if "gpu" in str(key) or "mig-" in str(key)]
    claims = resources.get("claims") or pod.spec.get("resourceClaims") or pod.spec.get("runtimeClassName")
    visible = "NVIDIA_VISIBLE_DEVICES" in around.environment
    around.speaks_of_gpus = bool(spoken or claims or visible)
    size = size_in_bytes(limits.get("memory", ""))
    if size:
        around.memory = Fact(size, pod.at(f"{inner}.resources.limits.memory"))


def _put_volumes(around: Surroundings, pod: Pod, container: dict[str, Any], inner: str) -> None:
    volumes = {
        _table(volume).get("name"): _table(volume) for volume in _listed(pod.spec.get("volumes"))[:200]
    }
    around.shm = Fact(DEFAULT_SHM, f"{pod.at(inner)} mounts no memory at /dev/shm")
    if pod.spec.get("hostIPC") is True:
        around.shm = None
    for mount in map(_table, _listed(container.get("volumeMounts"))[:200]):
        volume, target = volumes.get(mount.get("name"), {}), str(mount.get("mountPath") or "").rstrip("/")
        if target == SHARED_MEMORY:
            around.shm = _shared_memory(pod, volume)
        source = _table(volume.get("hostPath")).get("path")
        if isinstance(source, str):
            around.mounts.append(Mount(target, source))
        _put_files(around, pod.manifest, volume, mount)


def _shared_memory(pod: Pod, volume: dict[str, Any]) -> Fact | None:
    """Return the size of a volume at /dev/shm, where it has one that is known."""
    size = size_in_bytes(_table(volume.get("emptyDir")).get("sizeLimit", ""))
    return Fact(size, pod.at("volumes")) if size else None


def _put_files(
    around: Surroundings, manifest: Manifest, volume: dict[str, Any], mount: dict[str, Any]
) -> None:
    """Put the files of a ConfigMap in the same manifest under the paths they are mounted at."""
    source = _table(volume.get("configMap"))
    document = manifest.maps.get(str(source.get("name") or ""))
    data = _table(document.at("data")) if document else {}
    renamed = {_table(item).get("key"): _table(item).get("path") for item in _listed(source.get("items"))}
    folder = str(mount.get("mountPath") or "").rstrip("/")
    for key, text in data.items():
        if not isinstance(text, str) or document is None or (renamed and key not in renamed):
            continue
        line = (document.line(f"data.{key}") or 0) + 1
        alone = mount.get("subPath") is not None and mount["subPath"] in (key, renamed.get(key))
        around.files[folder if alone else f"{folder}/{renamed.get(key) or key}"] = (text, line)


def _put_ports(around: Surroundings, pod: Pod, container: dict[str, Any], inner: str) -> None:
    """Put the ports that a probe, a declared port or a service of the same file leads to."""
    names = {
        str(_table(port).get("name")): whole_number(_table(port).get("containerPort"))
        or _table(port).get("containerPort")
        for port in _listed(container.get("ports"))
    }
    called_ports: list[Any] = list(names.values())
    for probe in PROBES:
        check = _table(container.get(probe))
        for kind in ("httpGet", "tcpSocket", "grpc"):
            port = _table(check.get(kind)).get("port")
            if port is None:
                continue
            called_ports.append(names.get(str(port)) or whole_number(port) or port)
            if isinstance(called_ports[-1], int):
                around.callers[probe] = called_ports[-1]
    if len(_listed(pod.spec.get("containers"))) == 1:
        around.callers |= {
            name: port
            for name, target_port in _services(pod)
            if (port := names.get(str(target_port)) or whole_number(target_port))
        }
    around.ports = (
        [] if TEMPLATED in str(called_ports) else [port for port in called_ports if isinstance(port, int)]
    )
    if around.ports:
        around.ports_at = pod.at(f"{inner}.ports" if container.get("ports") else inner)
    if pod.spec.get("hostNetwork") is True and not any(container.get(probe) for probe in PROBES):
        around.ports = []


def _services(pod: Pod) -> Iterator[tuple[str, Any]]:
    """Yield the services of the same file that select a pod, each with the port of the pod that it calls."""
    above = pod.path.rpartition("spec")[0]
    labels = _table(pod.document.at(f"{above}metadata.labels"))
    for document in pod.manifest.documents:
        selector = _table(document.at("spec.selector"))
        if document.at("kind") != "Service" or not selector or not selector.items() <= labels.items():
            continue
        for port in map(_table, _listed(document.at("spec.ports"))):
            yield f"Service {document.at('metadata.name')}", port.get("targetPort") or port.get("port")


def _put_nodes(around: Surroundings, pod: Pod) -> None:
    """Put how many pods work together: a LeaderWorkerSet's group, or the workers of an MPIJob."""
    size = whole_number(pod.document.at("spec.leaderWorkerTemplate.size") or "")
    workers = pod.document.at("spec.mpiReplicaSpecs.Worker")
    if size:
        around.nodes = Fact(size, pod.document.where("spec.leaderWorkerTemplate.size"))
    elif isinstance(workers, dict) and ".Launcher." in pod.path:
        count = whole_number(workers.get("replicas", 1)) or 1
        around.nodes = Fact(count, pod.document.where("spec.mpiReplicaSpecs.Worker.replicas"))
        around.gpus, around.shm = _of_workers(pod, workers), None
        around.speaks_of_gpus = True


def _of_workers(pod: Pod, workers: dict[str, Any]) -> Fact | None:
    """Return the GPUs of an MPIJob's workers, which its launcher has none of."""
    for path, spec in pod_specs(workers, "spec.mpiReplicaSpecs.Worker"):
        for container in map(_table, _listed(spec.get("containers"))):
            count = whole_number(_table(_table(container.get("resources")).get("limits")).get(GPU, ""))
            if count:
                return Fact(count, pod.document.where(path))
    return None
