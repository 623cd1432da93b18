# pyright: strict
"""An all-reduce over two nodes in plain torch.distributed: gloo between processors, NCCL between GPUs.

The two meet in a store of the node that serves, on the addresses of the connection that they have already.
"""

import importlib
import importlib.util
import os
import socket
import struct
import time
from datetime import timedelta
from fcntl import ioctl
from typing import Any

SECONDS = 3.0
START_S = 90.0
"""For `import torch` on the other node, which reads a gigabyte of files."""
NUMBERS = 1 << 24
"""Of 32 bits each: 64 MiB."""
WARM_UP, LEAST = 2, 3
_SIOCGIFADDR = 0x8915


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
    distributed: Any = importlib.import_module("torch.distributed")
    link.settimeout(START_S)
    here = link.getsockname()[0]
    try:
        store = distributed.TCPStore(here, 0, 2, True, timedelta(seconds=START_S), wait_for_workers=False)
        link.sendall(str(store.port).encode())
        _measure(distributed, transport, store, 0, here)
    except RuntimeError as error:  # of torch, such as a connection that broke
        raise OSError(f"{transport}: {error}") from error


def join(transport: str, link: socket.socket, port: int) -> tuple[float, str]:
    """Take part as the node that measures; return the bus bandwidth in GB/s and a note. Raises OSError."""
    distributed: Any = importlib.import_module("torch.distributed")
    here, there = link.getsockname()[0], link.getpeername()[0]
    try:
        store = distributed.TCPStore(there, port, 2, False, timedelta(seconds=START_S))
        rate, wrong = _measure(distributed, transport, store, 1, here)
    except RuntimeError as error:
        raise OSError(f"{transport}: {error}") from error
    note = f"{transport}, {NUMBERS * 4 >> 20} MiB, with {there}"
    return (0.0, f"{wrong} wrong sums; {note}") if wrong else (rate, note)


def _measure(distributed: Any, transport: str, store: Any, rank: int, address: str) -> tuple[float, int]:
    """Return GB/s and how many sums of the last round are wrong."""
    torch: Any = importlib.import_module("torch")
    if name := interface_of(address):
        os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name
    limit = timedelta(seconds=START_S)
    distributed.init_process_group(transport, store=store, rank=rank, world_size=2, timeout=limit)
    try:
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
