"""An all-reduce over two nodes in plain torch.distributed: gloo between processors, NCCL between GPUs.

The two exchange the addresses of their ports on the connection that they have already, which has shown the
token. Torch's own store would listen on a port for everybody. The ports that gloo and NCCL open for their
data ask for no token, either: where an address but that of the other node is connected, nothing counts.
"""

import contextlib
import importlib
import importlib.util
import os
import socket
import struct
import threading
import time
from collections.abc import Collection
from datetime import timedelta
from fcntl import ioctl
from typing import Any

SECONDS = 3.0
START_S = 90.0
"""For `import torch` on the other node, which reads a gigabyte of files."""
NUMBERS = 1 << 24
"""Numbers of 32 bits each: 64 MiB."""
WARM_UP, LEAST = 2, 3
READY = "ready"
"""Answer of the node that serves; anything else says why it does not take part."""
MOST_BYTES, MOST_KEYS = 1 << 20, 1000
"""Limits of the other node's data: one value, and all of them."""
_SIOCGIFADDR = 0x8915


class UnexpectedPeer(Exception):
    """A peer other than the two nodes is connected."""


def reason_against(transport: str) -> str:
    """Return why this node cannot take part, or ""."""
    if transport not in ("gloo", "nccl"):
        return f"This release has no transport {transport!r}"
    if importlib.util.find_spec("torch") is None:
        return "There is no torch in this Python, so only TCP is measured"
    if transport == "nccl" and not importlib.import_module("torch").cuda.is_available():
        return "There is no GPU that CUDA can use"
    return ""


def lead(transport: str, link: socket.socket) -> None:
    """Take part as the node that serves. Raises OSError."""
    link.sendall(READY.encode())
    _take_part(transport, link, 0)


def join(transport: str, link: socket.socket) -> tuple[float, str]:
    """Take part as the node that measures; return the bus bandwidth in GB/s and a note. Raises OSError."""
    rate, wrong = _take_part(transport, link, 1)
    note = f"{transport}, {NUMBERS * 4 >> 20} MiB, with {link.getpeername()[0]}"
    return (0.0, f"{wrong} wrong sums; {note}") if wrong else (rate, note)


def _take_part(transport: str, link: socket.socket, rank: int) -> tuple[float, int]:
    distributed: Any = importlib.import_module("torch.distributed")
    link.settimeout(START_S)
    peers = (link.getsockname()[0], link.getpeername()[0])
    try:
        found = _measure(distributed, transport, store_over(link), rank, peers)
    except (RuntimeError, UnexpectedPeer) as error:  # of torch, such as a connection that broke
        raise OSError(f"{transport}: {error}") from error
    return found


def store_over(link: socket.socket) -> Any:
    """Return a store of torch for two processes, whose keys go over their connection and over no port."""
    distributed: Any = importlib.import_module("torch.distributed")

    class LinkStore(distributed.Store):
        """A store over one connection: a value that one side sets arrives at the other when it waits."""

        def __init__(self) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._known, self._lock = dict[str, bytes](), threading.RLock()

        def set(self, key: str, value: bytes | str) -> None:
            data = value.encode() if isinstance(value, str) else bytes(value)
            with self._lock:
                self._known[key] = data
                link.sendall(struct.pack("!II", len(key.encode()), len(data)) + key.encode() + data)

        def get(self, key: str) -> bytes:
            with self._lock:
                while key not in self._known:
                    self._receive()
                return self._known[key]

        def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
            for key in keys:
                self.get(key)

        def check(self, keys: list[str]) -> bool:
            with self._lock:
                return all(key in self._known for key in keys)

        def set_timeout(self, timeout: timedelta) -> None:
            """The connection has one."""

        def _receive(self) -> None:
            lengths = struct.unpack("!II", _exactly(link, 8))
            if max(lengths) > MOST_BYTES or len(self._known) >= MOST_KEYS:
                raise OSError("the other node sends more than an exchange of addresses needs")
            key, value = (_exactly(link, length) for length in lengths)
            self._known[key.decode(errors="replace")] = value

    return LinkStore()


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        got = link.recv(count - len(data))
        if not got:
            raise OSError("the other node ended the connection")
        data += got
    return data


def refuse_unexpected_peers(allowed: Collection[str]) -> None:
    """Raise UnexpectedPeer where this process has a TCP connection with another address than these."""
    for name in os.listdir("/proc/self/fd"):
        address = ""
        with contextlib.suppress(OSError):  # no socket, one that listens, or closed meanwhile
            address = _other_end(os.dup(int(name)))
        if address and address not in allowed:
            raise UnexpectedPeer(f"{address} is connected, which is not the other node")


def _other_end(descriptor: int) -> str:
    """Return the address at the other end of a TCP connection; "" for another socket. It is closed."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise
    with found:
        is_tcp = found.family in (socket.AF_INET, socket.AF_INET6) and found.type == socket.SOCK_STREAM
        return str(found.getpeername()[0]).removeprefix("::ffff:") if is_tcp else ""


def _measure(
    distributed: Any, transport: str, store: Any, rank: int, peers: tuple[str, str]
) -> tuple[float, int]:
    """Return GB/s and how many sums of the last round are wrong. `peers`: the addresses here and there."""
    torch: Any = importlib.import_module("torch")
    if name := interface_of(peers[0]):
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
    limit = timedelta(seconds=START_S)
    distributed.init_process_group(transport, store=store, rank=rank, world_size=2, timeout=limit)
    try:
        refuse_unexpected_peers(peers)
        device = "cuda:0" if transport == "nccl" else "cpu"
        numbers = torch.empty(NUMBERS, dtype=torch.float32, device=device)
        more, took, wrong = torch.ones(1, device=device), list[float](), 0
        while more.item():
            numbers.fill_(rank + 1)
            if device != "cpu":
                torch.cuda.synchronize()
            began = time.perf_counter()
            distributed.all_reduce(numbers)
            if device != "cpu":
                torch.cuda.synchronize()
            took.append(time.perf_counter() - began)
            wrong = int((numbers != 3).sum().item())
            is_done = sum(took) >= SECONDS and len(took) >= WARM_UP + LEAST
            more.fill_(rank == 0 and not is_done and not wrong)
            distributed.all_reduce(more)  # one of both says when it is enough
        counted = took[WARM_UP:] or took
        refuse_unexpected_peers(peers)
        # With two nodes, each sends and gets all bytes: bus and algorithm bandwidth are equal.
        return NUMBERS * 4 * len(counted) / sum(counted) / 1e9, wrong
    finally:
        distributed.destroy_process_group()


def interface_of(address: str) -> str:
    """Return the network interface that has an IPv4 address, or "". The name of a host may be of another."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                found = ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(found[20:24]) == address:
                return name
    return ""
