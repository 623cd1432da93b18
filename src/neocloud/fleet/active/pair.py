"""Between two nodes: one serves for a while, the other measures TCP, and an all-reduce where both have torch.

A connection begins with a token that both nodes were given, so that no other traffic is measured.
Nothing that a client sends is kept: the server reads and counts, or sends it back.
"""

import contextlib
import hmac
import socket
import statistics
import time
from dataclasses import dataclass

from neocloud.fleet.active import all_reduce
from neocloud.fleet.agent.probe_result import ProbeResult

SECONDS = 3.0
ROUNDS = 500
BLOCK = 1 << 20
ECHO, SINK, REDUCE, LEAVE = b"e", b"s", b"r", b"q"
CONNECT_S = 5.0
AWAIT_S = 15.0
"""How long the other node may take to start its server."""
PAUSE_S = 0.1
LEAVE_S = 1.0
"""To say good-bye: where a job has ended the run, this is all that is left of it."""
TOKEN_BYTES = 32
LONGEST_ANSWER = 300
REDUCED = {"pair_all_reduce": "gloo", "pair_nccl_all_reduce": "nccl"}
"""Checks of all-reduces and the transport of each."""


@dataclass(frozen=True)
class Partner:
    """The node that serves."""

    place: str
    """ADDRESS:PORT."""
    token: str = ""

    def connect(self, kind: bytes) -> socket.socket:
        """Connect, and wait for a server that still starts. Raises OSError."""
        until = time.monotonic() + AWAIT_S
        while True:
            try:
                return self._open(kind, CONNECT_S)
            except ConnectionRefusedError:
                if time.monotonic() >= until:
                    raise
                time.sleep(PAUSE_S)

    def leave(self) -> None:
        """Tell the server that nothing more comes. One that has ended already needs no word."""
        with contextlib.suppress(OSError):
            self._open(LEAVE, LEAVE_S).close()

    def _open(self, kind: bytes, seconds: float) -> socket.socket:
        address, _, port = self.place.rpartition(":")
        link = socket.create_connection((address, int(port)), timeout=seconds)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_padded(self.token) + kind)
        return link


def measure(name: str, partner: Partner) -> ProbeResult:
    """Measure with a node that serves. Raises OSError."""
    found, transport = ProbeResult(), REDUCED.get(name, "")
    if transport and (why := all_reduce.reason_against(transport)):
        found.leave_out(why, name)
        return found
    kind = REDUCE + transport[:1].encode() if transport else ECHO if name == "pair_latency" else SINK
    with partner.connect(kind) as link:
        address = partner.place.rpartition(":")[0]
        if transport:
            _reduce(found, name, transport, link)
        elif kind == ECHO:
            found.read(name, "", _round_trip(link) * 1e6, f"TCP, {ROUNDS} rounds, with {address}", unit="us")
        else:
            found.read(
                name, "", _bits_per_second(link) / 1e9, f"TCP, one stream, to {address}", unit="Gbit/s"
            )
    return found


def _padded(token: str) -> bytes:
    return token.encode()[:TOKEN_BYTES].ljust(TOKEN_BYTES, b"\0")


def _reduce(found: ProbeResult, name: str, transport: str, link: socket.socket) -> None:
    link.settimeout(all_reduce.START_S)
    answer = link.recv(LONGEST_ANSWER).decode(errors="replace")
    if answer != all_reduce.READY:
        found.leave_out(f"The other node: {answer or 'ended the connection'}", name)
        return
    rate, note = all_reduce.join(transport, link)
    found.read(name, "", rate, note, unit="GB/s")


def _round_trip(link: socket.socket) -> float:
    took = list[float]()
    for _ in range(ROUNDS):
        began = time.perf_counter()
        link.sendall(b"x")
        if link.recv(1) != b"x":
            raise OSError("the other node ended the connection")
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def _bits_per_second(link: socket.socket) -> float:
    block, sent = bytes(BLOCK), 0
    began = time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        link.sendall(block)
        sent += len(block)
    link.shutdown(socket.SHUT_WR)
    counted = link.recv(32)  # it has read everything by then
    if counted != f"{sent}".encode():
        raise OSError("the other node did not get all that was sent")
    return 8 * sent / (time.perf_counter() - began)


def serve(server: socket.socket, until: float, token: str = "") -> None:
    """Serve one connection at a time until a moment of the monotonic clock, or the client leaves."""
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
                if not hmac.compare_digest(_exactly(link, TOKEN_BYTES), _padded(token)):
                    continue
                kind = link.recv(1)
                if kind == LEAVE:
                    return
                _serve_one(kind, link, until)
            except OSError:
                continue


def _exactly(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (got := link.recv(count - len(data))):
        data += got
    return data


def _serve_one(kind: bytes, link: socket.socket, until: float) -> None:
    if kind == REDUCE:
        _serve_reduction(link)
        return
    count, buffer = 0, bytearray(BLOCK)
    while time.monotonic() < until and (got := link.recv_into(buffer)):
        count += got
        if kind == ECHO:
            link.sendall(buffer[:got])
    if kind == SINK:
        link.sendall(str(count).encode())


def _serve_reduction(link: socket.socket) -> None:
    first = link.recv(1)
    transport = next((each for each in REDUCED.values() if each[:1].encode() == first), "")
    if why := all_reduce.reason_against(transport):
        link.sendall(why.encode()[:LONGEST_ANSWER])
        return
    all_reduce.lead(transport, link)
