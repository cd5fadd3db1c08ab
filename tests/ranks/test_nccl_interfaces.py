"""NCCL's choice of an interface, by the rules of its source."""

from __future__ import annotations

import pytest

from support.make_probes import LOOPBACK, UP, make_address, make_probe
from trtdx.ranks.nccl_interfaces import interfaces_for_nccl, matches_names

LO = make_address("lo", "127.0.0.1", 8, LOOPBACK)
ETH, IB, DOCKER = (
    make_address("eth0", "10.0.0.1"),
    make_address("ib0", "10.1.0.1"),
    make_address("docker0", "172.17.0.1"),
)
VIRBR, ENO = make_address("virbr0", "192.168.122.1"), make_address("eno2", "10.2.0.1")
SIX = make_address("eth0", "fd00::1", 64)


@pytest.mark.parametrize(
    ("addresses", "environment", "chosen"),
    [
        ((LO, ETH, IB), {}, ["ib0"]),
        ((LO, DOCKER, ETH, ENO), {}, ["eth0", "eno2"]),
        ((LO, DOCKER, VIRBR), {}, ["docker0"]),
        ((LO, VIRBR), {}, ["lo"]),
        ((LO, ETH, ENO), {"NCCL_SOCKET_IFNAME": "en"}, ["eno2"]),
        ((LO, ETH, ENO), {"NCCL_SOCKET_IFNAME": "^eth"}, ["lo", "eno2"]),
        ((LO, ETH), {"NCCL_SOCKET_IFNAME": "=eth"}, []),
        ((LO, ETH), {"NCCL_SOCKET_IFNAME": "=eth0:22"}, ["eth0"]),
        ((LO, ETH), {"NCCL_SOCKET_IFNAME": "x"}, ["eth0"]),
        ((LO, make_address("eth0", "10.0.0.1", flags=UP & ~64), ENO), {}, ["eno2"]),
        ((LO, ETH, SIX), {"NCCL_SOCKET_FAMILY": "AF_INET6"}, ["eth0"]),
        ((LO, ETH, ENO), {"NCCL_COMM_ID": "10.2.0.9:1234"}, ["eno2"]),
    ],
)
def test_the_choice_follows_the_rules(addresses, environment, chosen):
    probe = make_probe(addresses=addresses, environment=environment)
    assert [entry.name for entry in interfaces_for_nccl(probe)] == chosen


def test_lists_of_names_are_read_as_nccl_reads_them():
    assert matches_names("eth12", "eth1,ib")
    assert not matches_names("eth12", "=eth1,ib")
    assert matches_names("anything", "")
    assert not matches_names("docker0", "^docker,lo")
