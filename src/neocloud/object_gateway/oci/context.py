"""Requests to the registry, and the context of their handlers."""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.types import Scope

from neocloud.core.clock import Clock
from neocloud.object_gateway.oci.errors import RegistryError
from neocloud.object_gateway.oci.mirror import Mirrors
from neocloud.object_gateway.oci.paths import Path, parse
from neocloud.object_gateway.oci.tokens import Token, TokenSigner
from neocloud.object_gateway.s3.authorizer import Authorizer, Caller
from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.context import Response
from neocloud.object_gateway.s3.request import joined_headers
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket

MAX_QUERY_PARTS = 100
_HOST = re.compile(r"(?:[a-z0-9.-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?", re.IGNORECASE)
JSON = "application/json"


@dataclass(frozen=True)
class RegistryDependencies:
    """Dependencies that all requests share."""

    store: ObjectStore
    authorizer: Authorizer
    clock: Clock
    signer: TokenSigner
    region: str
    """The region that signatures of access keys name."""
    requests_per_second: float
    mirrors: Mirrors


@dataclass(frozen=True)
class RegistryRequest:
    method: str
    path: Path
    query: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    """The headers by lower-case name."""
    client: str
    """The address of the client."""
    origin: str
    """The origin at which the client reached the registry: "https://127.0.0.1:8903"."""

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def get(self, name: str) -> str | None:
        return next((value for key, value in self.query if key == name), None)

    @property
    def service(self) -> str:
        return self.origin.partition("//")[2]


def read_request(scope: Scope) -> RegistryRequest:
    """Raises RegistryError."""
    headers = joined_headers(scope["headers"])
    client: tuple[str, int] | None = scope.get("client")
    raw_path: bytes = scope["raw_path"].partition(b"?")[0]
    return RegistryRequest(
        method=scope["method"],
        path=parse(raw_path.decode("latin-1")),
        query=parsed_form(scope["query_string"]),
        headers=headers,
        client=client[0] if client else "",
        origin=f"{scope['scheme']}://{_host(headers, scope)}",
    )


def parsed_form(text: bytes) -> list[tuple[str, str]]:
    """Raises RegistryError."""
    try:
        return parse_qsl(
            text.decode("ascii"),
            keep_blank_values=True,
            max_num_fields=MAX_QUERY_PARTS,
            encoding="utf-8",
            errors="strict",
        )
    except ValueError:
        raise RegistryError(400, "UNSUPPORTED", "The query or form cannot be read.") from None


def _host(headers: Mapping[str, str], scope: Scope) -> str:
    """Return the host as the client calls it; where it cannot be one, the address that was connected to."""
    host = headers.get("host", "")
    if _HOST.fullmatch(host):
        return host
    server: tuple[str, int] | None = scope.get("server")
    return f"{server[0]}:{server[1]}" if server else "localhost"


@dataclass
class RegistryContext:
    dependencies: RegistryDependencies
    request: RegistryRequest
    body: Body
    caller: Caller
    token: Token
    registry: Bucket

    @property
    def store(self) -> ObjectStore:
        return self.dependencies.store

    @property
    def path(self) -> Path:
        return self.request.path

    @property
    def repository(self) -> str:
        return self.request.path.repository

    def location(self, rest: str) -> str:
        return f"/v2/{self.path.name}/{rest}"


Handler = Callable[[RegistryContext], Awaitable[Response]]
