"""What one process of a job sees of the network: interfaces as libraries see them, names, ports, RDMA devices."""

from __future__ import annotations

import ctypes
import glob
import os
import socket
import struct
from typing import Any, Dict

Facts = Dict[str, Any]


def read_text(path: str, limit: int = 65536) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit).strip()
    except OSError:
        return ""


def read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class _SockAddr(ctypes.Structure):
    _fields_ = [("family", ctypes.c_ushort), ("data", ctypes.c_ubyte * 26)]


class _IfAddrs(ctypes.Structure):
    pass


_IfAddrs._fields_ = [
    ("next", ctypes.POINTER(_IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(_SockAddr)),
    ("netmask", ctypes.POINTER(_SockAddr)),
    ("other", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
]


def probe_interfaces() -> Facts:
    """Return the addresses of the interfaces in the order in which libraries see them (getifaddrs)."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_IfAddrs)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    rows, item = [], first
    while item:
        entry = item.contents
        name = entry.name.decode()
        row = {"name": name, "flags": entry.flags}
        address = _address_text(entry.address, entry.netmask) if entry.address else None
        rows.append(dict(row, **address) if address else row)
        item = entry.next
    libc.freeifaddrs(first)
    names = sorted({row["name"] for row in rows})
    return {
        "addresses": [row for row in rows if "address" in row],
        "links": [_describeread_link(name, rows) for name in names],
    }


def _address_text(address: Any, netmask: Any) -> Facts | None:
    family, data = address.contents.family, bytes(address.contents.data)
    mask = bytes(netmask.contents.data) if netmask else b"\0" * 26
    if family == socket.AF_INET:
        bits = bin(struct.unpack("!I", mask[2:6])[0]).count("1")
        return {"family": 4, "address": socket.inet_ntop(family, data[2:6]), "prefix": bits}
    if family == socket.AF_INET6:
        bits = bin(int.from_bytes(mask[6:22], "big")).count("1")
        return {"family": 6, "address": socket.inet_ntop(family, data[6:22]), "prefix": bits}
    return None


def _describeread_link(name: str, rows: list[Facts]) -> Facts:
    folder = "/sys/class/net/" + name
    flags = next(row["flags"] for row in rows if row["name"] == name)
    mtu, speed = read_text(folder + "/mtu"), read_text(folder + "/speed")
    return {
        "name": name,
        "flags": flags,
        "state": read_text(folder + "/operstate"),
        "mtu": int(mtu) if mtu.isdigit() else _mtu_by_ioctl(name),
        "speed": int(speed) if speed.isdigit() else 0,
        "is_physical": os.path.exists(folder + "/device"),
        "kind": _link_kind(folder, flags),
        "master": os.path.basename(read_link(folder + "/master")),
    }


def _mtu_by_ioctl(name: str) -> int:
    """Return the MTU where /sys belongs to another network namespace."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock, 0x8921, struct.pack("16si12x", name.encode()[:15], 0))
        except OSError:
            return 0
    return int(struct.unpack("16si12x", answer)[1])


def _link_kind(folder: str, flags: int) -> str:
    if flags & 8:
        return "loopback"
    for kind in ("bridge", "bonding", "tun_flags"):
        if os.path.exists(folder + "/" + kind):
            return kind.replace("_flags", "")
    return ""


def probe_names(peers: list[str], ports: list[int]) -> Facts:
    """Return what host names mean here, and which ports are taken."""
    names = list(dict.fromkeys([socket.gethostname(), *peers]))
    return {"names": {name: _resolve(name) for name in names}, "ports": {str(port): _try_port(port) for port in ports}}


def _resolve(name: str) -> Any:
    try:
        return sorted({info[4][0] for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError as err:
        return {"problem": str(err)}


def _try_port(port: int) -> str:
    """Return "free", or why a server cannot listen on the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(("0.0.0.0", port))
        except OSError as err:
            return err.strerror or str(err)
    return "free"


def probe_rdma() -> Facts:
    devices = []
    for path in sorted(glob.glob("/sys/class/infiniband/*")):
        ports = [
            {
                "state": read_text(port + "/state"),
                "layer": read_text(port + "/link_layer"),
                "rate": read_text(port + "/rate"),
            }
            for port in sorted(glob.glob(path + "/ports/*"))
        ]
        devices.append({"name": os.path.basename(path), "ports": ports})
    verbs = sorted(glob.glob("/dev/infiniband/uverbs*"))
    return {
        "rdma": {
            "devices": devices,
            "verbs": verbs,
            "usable": [path for path in verbs if os.access(path, os.R_OK | os.W_OK)],
        }
    }
