"""Whether ranks on several hosts will meet on the network: the interfaces their libraries take, and what these share."""

from __future__ import annotations

import ipaddress
import re
from itertools import combinations
from typing import TYPE_CHECKING

from trtdx.model import Evidence, Severity
from trtdx.ranks.judges.judge import launch_fix
from trtdx.ranks.nccl_interfaces import interfaces_for_nccl, matches_names, network_of
from trtdx.ranks.nouns import IFF_LOOPBACK, IFF_RUNNING, RankProbe, RankViolation, name_hosts, name_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import InterfaceAddress, ProbedJob

VIRTUAL_NAMES = re.compile(
    r"(?:docker|br-|virbr|veth|cni|flannel|cali|cilium|tun|tap|wg|tailscale|zt|vmnet|vboxnet|lxc|lxd|podman|kube|nerdctl)"
)
# Who reads a list of interface names, how, and the page of what goes wrong.
NAMED_BY = (
    ("NCCL_SOCKET_IFNAME", "NCCL", "DX405"),
    ("GLOO_SOCKET_IFNAME", "gloo", "DX405"),
    ("OMPI_MCA_btl_tcp_if_include", "Open MPI", "DX439"),
    ("OMPI_MCA_oob_tcp_if_include", "Open MPI's daemons", "DX439"),
    ("UCX_NET_DEVICES", "UCX", "DX422"),
)


def nodes_on_networks(job: ProbedJob) -> list[RankProbe]:
    """Return one probe of each network stack; several host names on one stack are one machine."""
    stacks = {
        (probe.boot_id, probe.namespaces.get("net", ""), "" if probe.boot_id else probe.host): probe
        for probe in reversed(job.probes)
    }
    return list(reversed(stacks.values()))


def judge_named_interfaces(job: ProbedJob) -> Iterator[RankViolation]:
    """The interfaces that variables name exist and run on every host."""
    for variable, reader, code in NAMED_BY:
        wrong = [(probe, problem) for probe in job.probes if (problem := _naming_problem(probe, variable))]
        if not wrong or max(job.world, len(job.probes)) < 2:
            continue
        probes = [probe for probe, _ in wrong]
        usable = _running_names(probes[0])
        yield RankViolation(
            code,
            f"{variable}={probes[0].environment[variable]} makes {reader} fail on {name_hosts(probes)}: {wrong[0][1]}",
            tuple(
                Evidence(f"{probe.title}: {variable}", f"{probe.environment[variable]}; {problem}")
                for probe, problem in wrong[:4]
            ),
            (
                launch_fix(
                    "name an interface that is there and runs on every host, or none",
                    f"export {variable}={usable[0]}" if usable else f"unset {variable}",
                ),
            ),
            tuple(probes),
            verify="ip -br addr",
        )


def _naming_problem(probe: RankProbe, variable: str) -> str:
    """Return why what a variable names cannot be used on a host, or nothing."""
    value = probe.environment.get(variable, "")
    if not value or value.startswith("^") or value in ("all", "auto"):
        return ""
    if variable == "NCCL_SOCKET_IFNAME":
        if len(value) < 2 or interfaces_for_nccl(probe):
            return ""
        return _absent_or_down(probe, [link.name for link in probe.links if matches_names(link.name, value)], value)
    names = [name.partition(":")[0].strip() for name in value.split(",")]
    names = [name for name in names if name and not re.match(r"[\d.]+/|mlx|bnxt|ib\d|efa|cuda|memory", name)]
    problems = [
        _absent_or_down(probe, [link.name for link in probe.links if link.name == name], name) for name in names
    ]
    return next((problem for problem in problems if problem), "") if names and all(problems) else ""


def _absent_or_down(probe: RankProbe, matching: list[str], value: str) -> str:
    if not matching:
        return f"no interface there is called {value.removeprefix('=')}"
    addressed = {entry.name for entry in probe.addresses if entry.flags & IFF_RUNNING}
    if set(matching) & addressed:
        return ""
    link = probe.find_link(matching[0])
    is_down = link is not None and not link.is_running
    return f"{matching[0]} is down" if is_down else f"{matching[0]} has no address"


def _running_names(probe: RankProbe) -> list[str]:
    """Return the interfaces ranks could meet on, real ones first."""
    names = dict.fromkeys(
        entry.name for entry in probe.addresses if entry.flags & IFF_RUNNING and not entry.flags & IFF_LOOPBACK
    )
    return sorted(names, key=lambda name: bool(VIRTUAL_NAMES.match(name)))


def judge_chosen_interfaces(job: ProbedJob) -> Iterator[RankViolation]:
    """The interfaces NCCL takes by itself lead from host to host."""
    probes = nodes_on_networks(job)
    if len(probes) < 2:
        return
    chosen = {probe.node: choice[0] for probe in probes if (choice := interfaces_for_nccl(probe))}
    lost = [probe for probe in probes if _is_astray(probe, chosen.get(probe.node))]
    if lost:
        yield _astray_violation(lost, chosen)
        return
    yield from _shared_addresses(probes, chosen)
    yield from _apart(probes, chosen)


def _is_astray(probe: RankProbe, entry: InterfaceAddress | None) -> bool:
    """Whether NCCL takes an interface that no other host can be behind, of its own accord or because it was told to."""
    if entry is None:
        return "NCCL_SOCKET_IFNAME" not in probe.environment  # else it is told by its name
    if entry.flags & IFF_LOOPBACK:
        return True
    others = [name for name in _running_names(probe) if not VIRTUAL_NAMES.match(name)]
    return bool(VIRTUAL_NAMES.match(entry.name)) and (bool(others) or entry.name.startswith(("docker", "virbr")))


def _astray_violation(lost: list[RankProbe], chosen: dict[tuple[str, str], InterfaceAddress]) -> RankViolation:
    entry = chosen.get(lost[0].node)
    what = f"takes {entry.name} ({entry.address})" if entry else "finds no interface"
    better = [name for name in _running_names(lost[0]) if not VIRTUAL_NAMES.match(name)]
    return RankViolation(
        "DX405",
        f"NCCL {what} on {name_hosts(lost)}, over which it reaches no other host",
        tuple(Evidence(f"{probe.host}: interfaces", _describe_interfaces(probe)) for probe in lost[:4]),
        (
            launch_fix("name the interface that leads to the other hosts", f"export NCCL_SOCKET_IFNAME={better[0]}")
            if better
            else launch_fix(
                "start the containers with the host's network", "docker run --network=host --ipc=host --gpus all IMAGE"
            ),
        ),
        tuple(lost),
    )


def _describe_interfaces(probe: RankProbe) -> str:
    rows = [
        f"{entry.name} {entry.address}/{entry.prefix}{'' if entry.flags & IFF_RUNNING else ' down'}"
        for entry in probe.addresses
        if entry.family == 4
    ]
    rows += [f"{link.name} down" for link in probe.links if not link.is_running and not link.name.startswith("ifb")][:6]
    return ", ".join(rows[:12])


def _shared_addresses(
    probes: list[RankProbe], chosen: dict[tuple[str, str], InterfaceAddress]
) -> Iterator[RankViolation]:
    for one, other in combinations(probes, 2):
        left, right = chosen.get(one.node), chosen.get(other.node)
        if left is None or right is None or left.address != right.address:
            continue
        yield RankViolation(
            "DX405",
            f"NCCL takes {left.name} on {one.host} and {right.name} on {other.host}, and both have the address {left.address}",
            tuple(Evidence(f"{probe.host}: interfaces", _describe_interfaces(probe)) for probe in (one, other)),
            (),
            (one, other),
        )
        return


def _apart(probes: list[RankProbe], chosen: dict[tuple[str, str], InterfaceAddress]) -> Iterator[RankViolation]:
    """Two hosts whose interfaces lie in different subnets, although other interfaces of theirs share one."""
    for one, other in combinations(probes, 2):
        left, right = chosen.get(one.node), chosen.get(other.node)
        if left is None or right is None or left.family != right.family or network_of(left) == network_of(right):
            continue
        common = [
            (a.name, b.name)
            for a in one.addresses
            for b in other.addresses
            if a.family == b.family == 4 and network_of(a) == network_of(b) and a.address != b.address
            if not (a.flags | b.flags) & IFF_LOOPBACK and a.flags & b.flags & IFF_RUNNING
        ]
        if not common:
            continue
        yield RankViolation(
            "DX405",
            f"NCCL takes {left.name} ({left.address}) on {one.host} and {right.name} ({right.address}) on {other.host}, "
            f"which are in different subnets, although {common[0][0]} and {common[0][1]} share one",
            tuple(Evidence(f"{probe.host}: interfaces", _describe_interfaces(probe)) for probe in (one, other)),
            (
                launch_fix(
                    "name the interfaces that share a subnet",
                    f"export NCCL_SOCKET_IFNAME={','.join(dict.fromkeys(common[0]))}",
                ),
            ),
            (one, other),
            Severity.WARNING,
            0.7,
        )
        return


def judge_subnets(job: ProbedJob) -> Iterator[RankViolation]:
    """No host has two interfaces in one subnet, of which replies take only one."""
    probes = nodes_on_networks(job)
    for probe in probes if len(probes) > 1 else ():
        entries = [
            entry
            for entry in probe.addresses
            if entry.family == 4 and entry.prefix < 31 and entry.flags & IFF_RUNNING and not entry.flags & IFF_LOOPBACK
        ]
        for one, other in combinations(entries, 2):
            if one.name == other.name or network_of(one) != network_of(other):
                continue
            yield RankViolation(
                "DX1303",
                f"{one.name} ({one.address}) and {other.name} ({other.address}) on {probe.host} are both in {network_of(one)}",
                (Evidence(f"{probe.host}: interfaces", _describe_interfaces(probe)),),
                (
                    launch_fix(
                        "let every library use one of them",
                        f"export NCCL_SOCKET_IFNAME='={one.name}' GLOO_SOCKET_IFNAME={one.name} OMPI_MCA_btl_tcp_if_include={one.name}",
                    ),
                ),
                (probe,),
                Severity.WARNING,
                0.8,
            )
            break


def judge_packet_sizes(job: ProbedJob) -> Iterator[RankViolation]:
    """Interfaces that ranks meet on have the same MTU."""
    sizes: dict[str, dict[int, list[RankProbe]]] = {}
    for probe in nodes_on_networks(job):
        for entry in interfaces_for_nccl(probe):
            link = probe.find_link(entry.name)
            if link and link.mtu and entry.family == 4 and not entry.flags & IFF_LOOPBACK:
                sizes.setdefault(str(network_of(entry)), {}).setdefault(link.mtu, []).append(probe)
    for network, by_size in sizes.items():
        if len(by_size) < 2:
            continue
        few = min(by_size.values(), key=len)
        words = ", ".join(f"{size} on {name_hosts(probes)}" for size, probes in sorted(by_size.items()))
        yield RankViolation(
            "DX1304",
            f"the interfaces in {network} have different MTUs: {words}",
            tuple(
                Evidence(f"{probes[0].host}: {_interface_in(probes[0], network)}", f"mtu {size}")
                for size, probes in sorted(by_size.items())
            ),
            (
                launch_fix(
                    "give all interfaces of the network one MTU; jumbo frames need the switches to take them too",
                    f"sudo ip link set {_interface_in(few[0], network)} mtu {_common_size(by_size)}",
                ),
            ),
            tuple(few),
            Severity.WARNING,
            0.85,
        )


def _interface_in(probe: RankProbe, network: str) -> str:
    return next((entry.name for entry in interfaces_for_nccl(probe) if str(network_of(entry)) == network), "")


def _common_size(by_size: dict[int, list[RankProbe]]) -> int:
    return max(by_size, key=lambda size: (len(by_size[size]), size))


def judge_repeated_addresses(job: ProbedJob) -> Iterator[RankViolation]:
    """Open MPI, which uses every interface, finds none whose address another host has as well."""
    probes = nodes_on_networks(job)
    if len(probes) < 2 or any("OMPI_MCA_btl_tcp_if_include" in probe.environment for probe in probes):
        return
    if not any("Open MPI" in str(probe.mpi.get("mpi4py", {}).get("library", "")) for probe in probes):
        return
    holders: dict[str, list[tuple[RankProbe, str]]] = {}
    for probe in probes:
        for entry in probe.addresses:
            is_private = entry.family == 4 and not ipaddress.ip_address(entry.address).is_loopback
            if is_private and entry.flags & IFF_RUNNING and not _is_excluded(probe, entry.name):
                if entry in interfaces_for_nccl(probe)[:1]:
                    continue  # NCCL takes it too, which is told
                holders.setdefault(entry.address, []).append((probe, entry.name))
    for address, pairs in holders.items():
        if len(pairs) < 2:
            continue
        name = pairs[0][1]
        yield RankViolation(
            "DX439",
            f"{name} has the address {address} on {name_hosts([probe for probe, _ in pairs])} alike, and Open MPI uses every interface",
            tuple(Evidence(f"{probe.host}: interfaces", _describe_interfaces(probe)) for probe, _ in pairs[:4]),
            (
                launch_fix(
                    "keep Open MPI off it",
                    f"export OMPI_MCA_btl_tcp_if_exclude=lo,{name} OMPI_MCA_oob_tcp_if_exclude=lo,{name}",
                ),
            ),
            tuple(probe for probe, _ in pairs),
            Severity.WARNING,
            0.8,
        )


def _is_excluded(probe: RankProbe, name: str) -> bool:
    return name in probe.environment.get("OMPI_MCA_btl_tcp_if_exclude", "").split(",")


def judge_rdma(job: ProbedJob) -> Iterator[RankViolation]:
    """RDMA devices that the kernel has can be opened by the ranks, where the job spans hosts."""
    if len(nodes_on_networks(job)) < 2:
        return
    hidden = [
        probe
        for probe in job.probes
        if probe.rdma.get("devices")
        and not probe.rdma.get("usable")
        and probe.environment.get("NCCL_IB_DISABLE") != "1"
    ]
    if hidden:
        names = ", ".join(device["name"] for device in hidden[0].rdma["devices"][:4])
        yield RankViolation(
            "DX404",
            f"{name_ranks(hidden)} cannot open the RDMA devices {names}, so NCCL falls back to sockets",
            (
                Evidence(
                    f"{hidden[0].title}: /dev/infiniband",
                    f"verbs devices there: {len(hidden[0].rdma.get('verbs', ()))}, usable: 0",
                ),
            ),
            (),
            tuple(hidden),
            Severity.WARNING,
            0.9,
        )


JUDGES = (
    judge_named_interfaces,
    judge_chosen_interfaces,
    judge_subnets,
    judge_packet_sizes,
    judge_repeated_addresses,
    judge_rdma,
)
