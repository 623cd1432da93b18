"""Bytes on a socket that are HTTP, nearly HTTP, or none; and what a server answers to them."""

import socket
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.real.security.fuzzing.calls import BROKEN_HTTP, PATIENCE_SECONDS

QUIET_SECONDS = 0.1
"""Without an answer for so long, the client says that it sends no more."""
MOST_ANSWER_BYTES = 32 << 20
AMBIGUOUS = (
    (b"Content-Length: 4", b"Transfer-Encoding: chunked"),
    (b"Transfer-Encoding: chunked", b"Content-Length: 4"),
    (b"Content-Length: 4", b"Content-Length: 60"),
    (b"Content-Length: 4, 60",),
    (b"Content-Length: +4",),
    (b"Content-Length: 0x4",),
    (b"Content-Length : 4",),
    (b"Transfer-Encoding: xchunked",),
    (b"Transfer-Encoding: chunked, identity",),
    (b"Transfer-Encoding: identity", b"Transfer-Encoding: chunked", b"Content-Length: 4"),
    (b"Transfer-Encoding:\x0bchunked", b"Content-Length: 4"),
    (b"X: y\rContent-Length: 4",),
    (b"Content-Length: 18446744073709551617",),
    (b"Content-Length: -1",),
)
"""Two servers in a row could see different ends of such a request: one of them must refuse it."""
HEADERS = (
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: AAAA\r\nSec-WebSocket-Version: 13",
    b"Expect: 100-continue",
    b"Expect: 200-nothing",
    b"Host: a\r\nHost: b",
    b"Host: a:b",
    b"Host: [",
    b"no colon",
    b": no name",
    b"X Y: z",
    b"X: a\r\n folded",
    b"X: \0",
    b"X: \xff\xfe",
    b"Content-Encoding: gzip",
    b"Accept-Encoding: " + b"gzip, " * 500,
    b"Cookie: " + b"a=b; " * 2000,
    b"Range: bytes=" + b"0-0," * 2000,
)
SIZES = (100, 3_000, 40_000)
STARTS = (
    b"",
    b"\r\n" * 300,
    b"\0" * 2000,
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\xaa" * 400,
    b"GET /\r\n\r\n",
    b"GET / HTTP/0.9\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET http://example.com/ HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /\xff\xc3\x28 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET /%ff%00%zz?%ff=%00& HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"GET /\0 HTTP/1.1\r\nHost: a\r\n\r\n",
    b"GET //../../etc/passwd HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
    b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"get / http/1.1\r\nhost: a\r\n\r\n",
)
CHUNKS = (
    b"0\r\n\r\n",
    b"4\r\nabcd\r\n0\r\n\r\n",
    b"4;" + b"x" * 20_000 + b"\r\nabcd\r\n0\r\n\r\n",
    b"FFFFFFFFFFFFFFFFF\r\nabcd\r\n",
    b"7FFFFFFFFFFFFFFF\r\nabcd\r\n",
    b"-1\r\nabcd\r\n",
    b"0x4\r\nabcd\r\n0\r\n\r\n",
    b"4\nabcd\n0\n\n",
    b"4\r\nabcdefgh\r\n0\r\n\r\n",
    b"1\r\na\r\n" * 3_000 + b"0\r\n\r\n",
    b"0\r\nX-Trailer: y\r\nContent-Length: 4\r\n\r\n",
    b"0\r\n" + b"T: y\r\n" * 3_000 + b"\r\n",
)


@dataclass(frozen=True)
class Answers:
    """The answers on one connection."""

    data: bytes
    is_ended: bool
    """The server closed the connection, or broke it off."""
    is_reset: bool = False
    """Broken off, as when it answers before it has read the whole body: the answer may be lost by that."""

    def statuses(self) -> list[int]:
        lines = [line for line in self.data.split(b"\r\n") if line.startswith(b"HTTP/1.")]
        return [int(line.split(b" ")[1]) for line in lines]

    def complaint(self) -> str:
        broken = [status for status in self.statuses() if status in BROKEN_HTTP]
        if broken:
            return f"{broken}: {self.data[:500]!r}"
        if not self.is_ended:
            return f"the connection hangs after {self.data[:200]!r}"
        return ""


@dataclass(frozen=True)
class Raw:
    data: bytes = field(repr=False)
    is_ambiguous: bool = False

    def complaint_about(self, answers: Answers) -> str:
        found = answers.complaint()
        if not found and self.is_ambiguous and len([s for s in answers.statuses() if s < 400]):
            found = f"an ambiguous request is taken: {answers.data[:500]!r}"
        return found and f"{self.data[:600]!r} ({len(self.data)} bytes): {found}"


@st.composite
def raw_requests(draw: st.DrawFn, paths: tuple[str, ...], token: str) -> Raw:
    """Bytes for one connection; most of them are a request to one of `paths`, bent in some place."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return Raw(draw(st.one_of(st.sampled_from(STARTS), st.binary(max_size=200))))
    path = draw(st.sampled_from(paths)).encode()
    start = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + token.encode()
    start += b"\r\nContent-Type: application/json\r\n"
    if kind in (1, 2):
        bent = b"\r\n".join(draw(st.sampled_from(AMBIGUOUS)))
        hidden = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return Raw(start + bent + b"\r\n\r\n" + b"0\r\n\r\n" + hidden, is_ambiguous=True)
    if kind in (3, 4):
        end = b"Connection: close\r\n" if draw(st.booleans()) else b""
        return Raw(start + end + b"Transfer-Encoding: chunked\r\n\r\n" + draw(st.sampled_from(CHUNKS)))
    if kind == 5:  # more than a head may have, or nearly
        count = draw(st.sampled_from(SIZES))
        lines = draw(st.sampled_from((b"X: y\r\n" * count, b"X: " + b"y" * count * 30 + b"\r\n")))
        return Raw(start + lines + draw(st.sampled_from((b"", b"Connection: close\r\n\r\n"))))
    if kind == 6:  # one after the other, before the first is answered
        one = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return Raw(
            one * draw(st.sampled_from((2, 200))) + one.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        )
    lines = b"".join(line + b"\r\n" for line in draw(st.lists(st.sampled_from(HEADERS), max_size=3)))
    body = b'{"model": "bank", "messages": [{"role": "user", "content": "a"}]}'
    whole = start + lines + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if kind == 7:
        return Raw(whole[: draw(st.integers(0, len(whole)))])
    if kind == 8:
        at = draw(st.integers(0, len(whole) - 1))
        return Raw(whole[:at] + draw(st.binary(min_size=1, max_size=3)) + whole[at + 1 :])
    return Raw(whole)


def talk(address: str, data: bytes, quiet_seconds: float = QUIET_SECONDS) -> Answers:
    """Send it all, and read until the server ends the connection.

    A server that waits for the rest of a request learns that none comes.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_SECONDS) as connection:
        received = bytearray()
        try:
            connection.sendall(data)
            connection.settimeout(quiet_seconds)
            while _receive(connection, received):
                pass
        except TimeoutError:
            return Answers(bytes(received), _end(connection, received))
        except OSError:
            return Answers(bytes(received), is_ended=True, is_reset=True)
        return Answers(bytes(received), is_ended=True)


def _end(connection: socket.socket, received: bytearray) -> bool:
    connection.settimeout(PATIENCE_SECONDS)
    try:
        connection.shutdown(socket.SHUT_WR)
        while _receive(connection, received):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def _receive(connection: socket.socket, received: bytearray) -> bool:
    data = connection.recv(1 << 16)
    received += data
    assert len(received) < MOST_ANSWER_BYTES
    return bool(data)
