"""The ports of this host that login nodes may have: the operator's range without the cloud's own ports."""

from dataclasses import dataclass
from typing import Any

FIRST_LOGIN_PORT = 2222
LAST_LOGIN_PORT = 2999
_CLOUDS = 16
"""Into so many parts the range is divided among the clouds of a host."""
"""The default range: no well-known service, and below the ports that the kernel gives to clients."""


@dataclass(frozen=True)
class LoginPorts:
    first: int = FIRST_LOGIN_PORT
    last: int = LAST_LOGIN_PORT
    own: frozenset[int] = frozenset()
    """Ports of the API, the gateway and the redirector: a login node must not answer for them."""
    cloud_number: int = 0
    """Clouds on one host begin at different ports: a stopped one listens on none, but needs its own again."""

    @classmethod
    def of(cls, settings: Any) -> "LoginPorts":
        """Return the ports that the operator chose in `settings`."""
        own = (
            *(settings.grpc_port, settings.http_port, settings.tls_port),
            *(settings.redirector_port, settings.gateway_port),
        )
        first, last = settings.login_ports
        return cls(first, last, frozenset(port for port in own if port), settings.cloud_number)

    def allows(self, port: int) -> bool:
        return self.first <= port <= self.last and port not in self.own

    def all(self) -> list[int]:
        """Return all ports in the order in which to try them."""
        size = self.last - self.first + 1
        start = self.first + self.cloud_number % _CLOUDS * (size // _CLOUDS)
        ports = (*range(start, self.last + 1), *range(self.first, start))
        return [port for port in ports if port not in self.own]

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"
