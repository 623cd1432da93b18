# pyright: strict
"""TCP between two nodes: one serves for a while, the other measures bandwidth and round trips.

Nothing that a client sends is kept: the server reads and counts, or sends it back.
"""

import socket
import statistics
import time

from neocloud.fleet.agent.found import Found

SECONDS = 3.0
ROUNDS = 500
BLOCK = 1 << 20
ECHO, SINK = b"e", b"s"
CONNECT_S = 5.0


def measure(name: str, partner: str) -> Found:
    """Measure with a server at "ADDRESS:PORT". Raises OSError."""
    found = Found()
    address, _, port = partner.rpartition(":")
    with socket.create_connection((address.strip("[]"), int(port)), timeout=CONNECT_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if name == "pair_latency":
            found.read(name, "", _round_trip(link) * 1e6, f"{ROUNDS} rounds, with {address}", unit="us")
        else:
            found.read(name, "", _bits_per_second(link) / 1e9, f"one stream, to {address}", unit="Gbit/s")
    return found


def _round_trip(link: socket.socket) -> float:
    link.sendall(ECHO)
    took = list[float]()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        link.sendall(b"x")
        if link.recv(1) != b"x":
            raise OSError("the other node ended the connection")
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _bits_per_second(link: socket.socket) -> float:
    link.sendall(SINK)
    block, sent = bytes(BLOCK), 0
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        link.sendall(block)
        sent += len(block)
    link.shutdown(socket.SHUT_WR)
    counted = link.recv(32)  # it has read everything by then
    if counted != f"{sent + 1}".encode():
        raise OSError("the other node did not get all that was sent")
    return 8 * sent / (time.perf_counter() - began)


def serve(server: socket.socket, until: float) -> None:
    """Serve one connection at a time until a moment of the monotonic clock."""
    while (left := until - time.monotonic()) > 0:
        server.settimeout(left)
        try:
            link, _ = server.accept()
        except TimeoutError:
            return
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link.settimeout(max(0.1, min(CONNECT_S, until - time.monotonic())))
            try:
                _serve_one(link, until)
            except OSError:
                continue


def _serve_one(link: socket.socket, until: float) -> None:
    kind = link.recv(1)
    count = len(kind)
    buffer = bytearray(BLOCK)
    while time.monotonic() < until and (got := link.recv_into(buffer)):
        count += got
        if kind == ECHO:
            link.sendall(buffer[:got])
    if kind == SINK:
        link.sendall(str(count).encode())
