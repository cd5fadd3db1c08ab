"""Faults of real networks: hosts are network namespaces, their interfaces and routes are the kernel's."""

from __future__ import annotations

import pytest

from support.mpi import mpi_environment, needs_open_mpi
from support.net_namespaces import fake_hosts, missing_for_namespaces

pytestmark = [
    needs_open_mpi,
    pytest.mark.skipif(bool(missing_for_namespaces()), reason=missing_for_namespaces()),
]


@pytest.fixture
def hosts(tmp_path):
    with fake_hosts(tmp_path, "a", "b") as made_hosts:
        yield made_hosts


@pytest.fixture
def on_hosts(hosts, trtdx):
    """Return a function that runs `trtdx ranks` on host a, for ranks on both."""

    def run(command, *words, **variables):
        environment = hosts.environment(
            **{name: value for name, value in mpi_environment().items() if "_if_" not in name}
        )
        environment["PATH"] = f"{hosts.folder}:{environment['PATH']}"
        for name in ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"):
            environment.pop(name, None)
        return trtdx(command, *words, before=hosts.on("a"), env=environment | variables)

    return run


@pytest.mark.heavy
def test_hosts_that_see_each_other_pass_by_ssh_and_by_mpirun(on_hosts):
    assert on_hosts("check", "--hosts", "a,b").codes == []
    answer = on_hosts("check", "--launcher", "mpirun -n 2 -H a,b")
    assert answer.codes == []
    assert [row[4] for row in answer.report["sections"][0]["rows"]] == ["eth0 10.77.0.1", "eth0 10.77.0.2"]


@pytest.mark.heavy
def test_an_mtu_that_differs_is_told_with_the_host(hosts, on_hosts):
    hosts.ip("b", "link", "set", "eth0", "mtu", "1400")
    answer = on_hosts("check", "--hosts", "a,b")
    assert answer.codes == ["DX1304"]
    assert "1400 on b, 1500 on a" in answer.findings[0]["message"]


@pytest.mark.heavy
def test_an_interface_that_is_named_and_down_is_told(hosts, on_hosts):
    hosts.join("data0", "10.78.0")
    assert on_hosts("check", "--hosts", "a,b", NCCL_SOCKET_IFNAME="data0").codes == []
    hosts.ip("b", "link", "set", "data0", "down")
    answer = on_hosts("check", "--hosts", "a,b", NCCL_SOCKET_IFNAME="data0")
    assert answer.codes == ["DX405"]
    assert "data0 is down" in answer.findings[0]["message"]
    assert "on b:" in answer.findings[0]["message"]


@pytest.mark.heavy
def test_two_interfaces_in_one_subnet_are_told(hosts, on_hosts):
    hosts.join("eth1", "10.77.0", only=())
    assert "DX1303" in on_hosts("check", "--hosts", "a,b").codes


@pytest.mark.heavy
def test_a_bridge_that_leads_nowhere_is_told(hosts, on_hosts):
    for host in ("a", "b"):
        hosts.ip(host, "link", "add", "docker0", "type", "bridge")
        hosts.ip(host, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        hosts.ip(host, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        hosts.ip(host, "link", "set", "veth0", "master", "docker0", "up")
        hosts.ip(host, "link", "set", "veth1", "up")
        hosts.ip(host, "link", "set", "docker0", "up")
        hosts.wait_until_up(host, "docker0")
    assert on_hosts("check", "--hosts", "a,b").codes == ["DX439"]
    assert on_hosts("check", "--hosts", "a,b", NCCL_SOCKET_IFNAME="docker0").codes == ["DX405"]


@pytest.mark.heavy
def test_variables_that_mpirun_does_not_pass_to_another_host_are_told(on_hosts):
    lost = on_hosts("check", "--launcher", "mpirun -n 2 -H a,b", NCCL_DEBUG="INFO")
    assert lost.codes == ["DX450"]
    assert lost.findings[0]["ranks"] == [1]
    passed = on_hosts("check", "--launcher", "mpirun -n 2 -H a,b -x NCCL_DEBUG", NCCL_DEBUG="INFO")
    assert passed.codes == []


@pytest.mark.heavy
def test_a_host_that_nobody_knows_is_told(on_hosts):
    answer = on_hosts("check", "--hosts", "a,nosuchhost")
    assert "DX426" in answer.codes


@pytest.mark.heavy
def test_the_smoke_test_names_the_pair_that_a_dead_route_parts(hosts, on_hosts):
    hosts.join("data0", "10.78.0")
    launcher = "mpirun -n 3 -H a:2,b --mca btl_tcp_if_include data0"
    words = ("smoke", "--launcher", launcher, "--size", "64KiB")
    assert on_hosts(*words).codes == []
    hosts.ip("b", "route", "del", "10.78.0.0/24", "dev", "data0")
    hosts.ip("b", "route", "add", "blackhole", "10.78.0.0/24")
    answer = on_hosts(*words, "--step-limit", "5")
    assert answer.codes[-1] == "DX406"
    assert 2 in answer.findings[-1]["ranks"]
