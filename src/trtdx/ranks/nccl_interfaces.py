"""Which network interface NCCL takes: its own rules, followed step by step.

src/misc/socket.cc (ncclFindInterfaces, findInterfaces) and src/misc/utils.cc (parseStringList, matchIf), v2.28.9-1.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from trtdx.ranks.nouns import IFF_RUNNING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trtdx.ranks.nouns import InterfaceAddress, RankProbe

# What is tried where the user names nothing: InfiniBand, then all but virtual ones, then these.
AUTOMATIC = ("ib", "^docker,lo,virbr", "docker", "lo", "virbr")


def interfaces_for_nccl(probe: RankProbe) -> list[InterfaceAddress]:
    """Return the interfaces NCCL would use on a host, the one for its bootstrap first; empty where it fails."""
    family = {"AF_INET": 4, "AF_INET6": 6}.get(probe.environment.get("NCCL_SOCKET_FAMILY", ""), 0)
    named = probe.environment.get("NCCL_SOCKET_IFNAME", "")
    if len(named) > 1:  # NCCL takes a single character for nothing
        return _matching(probe, named, family)
    choices = [_matching(probe, AUTOMATIC[0], family), _same_subnet_as_id(probe)]
    choices += [_matching(probe, prefixes, family) for prefixes in AUTOMATIC[1:]]
    return next((choice for choice in choices if choice), [])


def matches_names(name: str, prefixes: str) -> bool:
    """Return whether an interface is meant by a list as NCCL reads it: prefixes, `=` exact names, `^` all but these."""
    is_excluding = prefixes.startswith("^")
    rest = prefixes.removeprefix("^")
    is_exact = rest.startswith("=")
    words = [word.partition(":")[0] for word in rest.removeprefix("=").split(",")]
    words = [word for word in words if word]
    hit = not words or any(name == word if is_exact else name.startswith(word) for word in words)
    return hit != is_excluding


def _matching(probe: RankProbe, prefixes: str, family: int) -> list[InterfaceAddress]:
    chosen: dict[str, InterfaceAddress] = {}
    for entry in _usable(probe, family):
        if matches_names(entry.name, prefixes):
            chosen.setdefault(entry.name, entry)
    return list(chosen.values())


def _usable(probe: RankProbe, family: int) -> Iterator[InterfaceAddress]:
    for entry in probe.addresses:
        if not entry.flags & IFF_RUNNING or (family and entry.family != family):
            continue
        if entry.family == 6 and ipaddress.ip_address(entry.address).is_loopback:
            continue
        yield entry


def _same_subnet_as_id(probe: RankProbe) -> list[InterfaceAddress]:
    """Return the interface in the subnet of NCCL_COMM_ID, where that is an address."""
    text = probe.environment.get("NCCL_COMM_ID", "").rpartition(":")[0].strip("[]")
    try:
        peer = ipaddress.ip_address(text)
    except ValueError:
        return []
    return [entry for entry in _usable(probe, 0) if peer in network_of(entry)][:1]


def network_of(entry: InterfaceAddress) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    """Return the subnet an address lies in."""
    return ipaddress.ip_network(f"{entry.address}/{entry.prefix}", strict=False)
