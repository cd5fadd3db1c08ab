"""Hosts of the test's own: network namespaces joined by a bridge, each with its own host name, reached by a stand-in
for ssh. What runs in them is real; only the machines are not. Everything goes when the context ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# What ssh does for trtdx and for mpirun's daemons: run a line of shell on another host, in an environment of its own.
_SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do case "$1" in -o) shift 2;; *) shift;; esac; done
host=$1; shift
[ "$1" = -- ] && shift
exec env -i PATH="$PATH" HOME="$HOME" MPI4PY_MPIABI=openmpi ip netns exec "PREFIX$host" unshare -u sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$host" "$@"
"""


@cache
def missing_for_namespaces() -> str:
    """Return why there can be no namespaces here, or an empty text."""
    absent = [name for name in ("ip", "unshare") if shutil.which(name) is None]
    if absent or os.geteuid() != 0:
        return f"not installed: {', '.join(absent)}" if absent else "network namespaces need root"
    name = f"trtdx-try-{os.getpid()}"
    tried = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"ip netns: {tried.stderr.strip()}" if tried.returncode else ""


class FakeHosts:
    """Some hosts on one network, 10.77.0.0/24; `names[0]` has 10.77.0.1."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.names, self.prefix = names, f"t{os.getpid()}-"
        self.folder = folder / "bin"
        self.folder.mkdir()
        ssh = self.folder / "ssh"
        ssh.write_text(_SSH.replace("PREFIX", self.prefix))
        ssh.chmod(0o755)

    def ip(self, host: str, *words: str) -> None:
        """Run `ip` in a host."""
        subprocess.run(["ip", "-n", self.prefix + host, *words], check=True, capture_output=True, text=True)

    def wait_until_up(self, host: str, interface: str) -> None:
        """Wait until the kernel says that an interface runs: it announces carriers once a second only."""
        for _ in range(100):
            words = ["ip", "-n", self.prefix + host, "-br", "link", "show", "dev", interface]
            if subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[1] == "UP":
                return
            time.sleep(0.1)
        raise AssertionError(f"{interface} of host {host} is not up after 10 s")

    def environment(self, **more: str) -> dict[str, str]:
        """Return an environment whose ssh leads to the hosts; mpirun uses it too."""
        path = f"{self.folder}:{os.environ['PATH']}"
        return os.environ | {"PATH": path, "OMPI_MCA_plm_rsh_agent": str(self.folder / "ssh")} | more

    def on(self, host: str, *argv: str) -> list[str]:
        """Return the command that runs another one on a host."""
        inner = ["unshare", "-u", "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", host, *argv]
        return ["ip", "netns", "exec", self.prefix + host, *inner]

    def join(self, interface: str, network: str, *, only: tuple[str, ...] = (), prefix: int = 24) -> None:
        """Give hosts an interface each on a network of its own ("10.78.0")."""
        bridge = f"{interface}br"
        switch = f"{self.prefix}switch"
        subprocess.run(["ip", "-n", switch, "link", "add", bridge, "type", "bridge"], check=True)
        subprocess.run(["ip", "-n", switch, "link", "set", bridge, "up"], check=True)
        for number, host in enumerate(self.names, 1):
            if only and host not in only:
                continue
            port = f"{interface}p{number}"
            subprocess.run(
                ["ip", "link", "add", interface, "netns", self.prefix + host, "type", "veth", "peer", "name", port,
                 "netns", switch], check=True,
            )  # fmt: skip
            subprocess.run(["ip", "-n", switch, "link", "set", port, "master", bridge, "up"], check=True)
            self.ip(host, "addr", "add", f"{network}.{number}/{prefix}", "dev", interface)
            self.ip(host, "link", "set", interface, "up")
            self.wait_until_up(host, interface)


@contextmanager
def fake_hosts(folder: Path, *names: str) -> Iterator[FakeHosts]:
    """Make hosts with an interface eth0 each that reaches the others, and a hosts file that knows all of them."""
    hosts = FakeHosts(folder, names)
    namespaces = [hosts.prefix + name for name in (*names, "switch")]
    files = "127.0.0.1 localhost\n" + "".join(f"10.77.0.{number} {name}\n" for number, name in enumerate(names, 1))
    try:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "add", namespace], check=True)
            subprocess.run(["ip", "-n", namespace, "link", "set", "lo", "up"], check=True)
            own = Path("/etc/netns") / namespace  # `ip netns exec` lays these files over /etc
            own.mkdir(parents=True, exist_ok=True)
            (own / "hosts").write_text(files)
        hosts.join("eth0", "10.77.0")
        yield hosts
    finally:
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / namespace, ignore_errors=True)
