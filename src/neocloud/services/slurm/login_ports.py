"""Which ports of this machine login nodes may have: the operator's range without the cloud's own ports."""

from dataclasses import dataclass
from typing import Any

FIRST_LOGIN_PORT = 2222
LAST_LOGIN_PORT = 2999
"""The default range: no well-known service, and below the ports that the kernel gives to clients."""


@dataclass(frozen=True)
class LoginPorts:
    first: int = FIRST_LOGIN_PORT
    last: int = LAST_LOGIN_PORT
    own: frozenset[int] = frozenset()
    """Ports of the API, the gateway and the redirector: a login node must not answer for them."""

    @classmethod
    def of(cls, settings: Any) -> "LoginPorts":
        """Return the ports that the operator chose in `settings`."""
        own = (
            *(settings.grpc_port, settings.http_port, settings.tls_port),
            *(settings.redirector_port, settings.gateway_port),
        )
        first, last = settings.login_ports
        return cls(first, last, frozenset(port for port in own if port))

    def allows(self, port: int) -> bool:
        return self.first <= port <= self.last and port not in self.own

    def all(self) -> list[int]:
        return [port for port in range(self.first, self.last + 1) if port not in self.own]

    def __str__(self) -> str:
        return f"{self.first} to {self.last}"
