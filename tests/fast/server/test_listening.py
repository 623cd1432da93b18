"""Ports of the server on several addresses."""

import socket

import pytest

from neocloud.server import listening
from neocloud.server.listening import ANY_PORT_ATTEMPTS, ServerError, close_all, listen, listen_on

HOSTS = ("127.0.0.1", "127.0.0.2")


class Taken:
    """Binds as `listen` does, but the first ports that any-port calls get are taken on the second address."""

    def __init__(self, times: int) -> None:
        self._times = times
        self.opened: list[socket.socket] = []

    def __call__(self, host: str, port: int) -> socket.socket:
        if host == HOSTS[1] and self._times:
            self._times -= 1
            raise ServerError(f"Port {port} on {host} is taken.")
        self.opened.append(listen(host, port))
        return self.opened[-1]


def test_another_port_is_tried_when_it_is_taken_on_the_next_address(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Taken(ANY_PORT_ATTEMPTS - 1)
    monkeypatch.setattr(listening, "listen", taken)
    found = listen_on(HOSTS, 0)
    assert [each.getsockname()[0] for each in found] == list(HOSTS)
    assert len({each.getsockname()[1] for each in found}) == 1
    assert all(each.fileno() == -1 for each in taken.opened if each not in found), "the others are closed"
    close_all(found)


@pytest.mark.parametrize("port", [0, 1], ids=["any port", "the chosen port"])
def test_it_does_not_try_for_ever(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    tried: list[int] = []

    def refuse(host: str, port: int) -> socket.socket:
        tried.append(port)
        raise ServerError("taken")

    monkeypatch.setattr(listening, "listen", refuse)
    with pytest.raises(ServerError, match="taken"):
        listen_on(HOSTS, port)
    assert len(tried) == (1 if port else ANY_PORT_ATTEMPTS)
