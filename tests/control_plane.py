"""A control plane in this process: real store, server and worker around a fake engine, and a client of it.

Tests of a service extend `Cloud` by what is its own. A wait for a resource is exact: the row is read again
after each run of a reconciler and each call of the API, and not in between.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import grpc
import jwt
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.control_plane import lifecycle
from neocloud.control_plane.composition import compose
from neocloud.control_plane.lifecycle import Composition, ControlPlane
from neocloud.core import contract, wire
from neocloud.core.clock import Clock, SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import Dependencies
from neocloud.core.store import Resource, Store
from neocloud.core.store.sqlite import empty_database
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.engines.fake import FakeEngine
from neocloud.server import Middleware
from neocloud.server.request import Request, Serve
from neocloud.settings.settings import Settings
from tests.fast.services.iam import keys

DEADLINE_SECONDS = 60.0
CALL_SECONDS = 60
TOKEN_TYPE = "urn:ietf:params:oauth:token-type"
RECHECK_SECONDS = 1.0
"""How often a row is read though nothing is known to have changed: a task of its own may write, too."""


class Changes:
    """Says when something may have been committed: a reconciler has run, or a call was answered."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def note(self) -> None:
        passed, self._next = self._next, asyncio.Event()
        passed.set()

    @property
    def next(self) -> asyncio.Event:
        """Set at the next change."""
        return self._next

    def noted_in(self, composition: Composition) -> Composition:
        def after_run(kind: str) -> None:
            composition.after_run(kind)
            self.note()

        def middleware(store: Store) -> Middleware:
            inner = composition.middleware(store)

            async def serve_and_note(request: Request, serve: Serve) -> Any:
                try:
                    return await inner(request, serve)
                finally:
                    self.note()

            return serve_and_note

        return replace(composition, after_run=after_run, middleware=middleware)


@dataclass
class Cloud:
    """A running control plane, and its first service account as the caller."""

    api: ClassVar[str] = ""
    """The package of methods that are named without one."""

    home: Path
    settings: Settings
    engine: Any
    """A FakeEngine, unless another was given."""
    running: ControlPlane
    channel: grpc.aio.Channel
    token: str
    changes: Changes
    stack: AsyncExitStack
    """Closes what is opened on demand."""

    @property
    def tenant_id(self) -> str:
        return self.running.first.tenant_id

    @property
    def project_id(self) -> str:
        return self.running.first.project_id

    @cached_property
    def sdk(self) -> SDK:
        """The official client."""
        credentials = self.home / "sdk.json"
        credentials.write_text(json.dumps(self.running.first.credentials))
        sdk = SDK(
            resolver=Constant(self.running.server.addresses.grpc),
            options=[(INSECURE, True)],
            credentials_file_name=str(credentials),
            user_agent_prefix="tests/1.0",
        )
        self.stack.push_async_callback(sdk.close)
        return sdk

    async def call(
        self, method: str, request: Any = None, /, *, headers: Mapping[str, str] | None = None, **fields: Any
    ) -> Any:
        """Call a method, such as "DiskService/Get", with a message, a dict, or the fields of a message."""
        path = method if method.startswith(("nebius.", "neocloud.")) else f"{self.api}.{method}"
        message = request
        if request is None or isinstance(request, Mapping):
            message = contract.from_dict(contract.method(path).input, {**(request or {}), **fields})
        metadata = (("authorization", f"Bearer {self.token}"), *(headers or {}).items())
        return await call(self.channel, path, message, metadata)

    async def refusal(self, method: str, request: Any = None, /, **fields: Any) -> contract.ApiError:
        """Return the error that this call is answered with."""
        try:
            await self.call(method, request, **fields)
        except grpc.aio.AioRpcError as error:
            details = dict(error.trailing_metadata() or ())["grpc-status-details-bin"]
            assert isinstance(details, bytes)
            return contract.from_status(details)
        raise AssertionError(f"{method} was not refused")

    async def create(self, noun: str, name: str, spec: Mapping[str, Any]) -> str:
        """Return the id of a new resource of the project."""
        metadata = {"parent_id": self.project_id, "name": name}
        operation = await self.call(f"{noun}Service/Create", metadata=metadata, spec=spec)
        return operation.resource_id

    async def get(self, noun: str, resource_id: str) -> Any:
        return await self.call(f"{noun}Service/Get", id=resource_id)

    async def row(self, resource_id: str) -> Resource | None:
        return await self.running.store.read(lambda tx: tx.get(resource_id))

    async def until(self, resource_id: str, *states: str) -> Any:
        """Return the resource as a message, once it is in one of these states."""
        return await self.when(resource_id, lambda message: True, *states)

    async def when(self, resource_id: str, holds: Callable[[Any], object], *states: str) -> Any:
        """Return the resource as a message, once it `holds` for it, and it is in one of the states if any."""

        def is_wanted(row: Resource | None) -> bool:
            return row is not None and (not states or row.state in states) and bool(holds(_message(row)))

        return _message(await self.row_when(resource_id, is_wanted))

    async def gone(self, resource_id: str) -> None:
        """Wait until the resource's row is removed."""
        await self.row_when(resource_id, lambda row: row is None)

    async def row_when(self, resource_id: str, holds: Callable[[Resource | None], object]) -> Resource | None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            change = self.changes.next
            row = await self.row(resource_id)
            if holds(row):
                return row
            assert time.monotonic() < deadline, f"after {DEADLINE_SECONDS:g} s it is still {_message(row)}"
            try:
                async with asyncio.timeout(RECHECK_SECONDS):
                    await change.wait()
            except TimeoutError:
                pass


def _message(row: Resource | None) -> Any:
    return None if row is None else wire.resource_message(row)


def plain_dependencies(store: Store, clock: Clock, provided: ServiceRegistry | None = None) -> Dependencies:
    """Return what services get that need neither an engine nor settings."""
    nothing: Any = None
    return Dependencies(store, clock, nothing, nothing, provided or ServiceRegistry())


@asynccontextmanager
async def cloud_in_process(
    home: Path,
    engine: Any = None,
    *,
    overrides: ServiceRegistry | None = None,
    images: Mapping[str, Mapping[str, Any]] | None = None,
    composed: Callable[[Settings, Any], Composition] | None = None,
    collectors: CertificateFiles | None = None,
    **settings: Any,
) -> AsyncIterator[Cloud]:
    """Run a control plane; may be entered again on the same home and engine, as after a restart.

    `images` are records of built images by their folder; `composed` replaces the usual composition.
    """
    for folder, record in (images or {}).items():
        path = home / "images" / folder / "image.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    chosen = Settings(home=home, **{"grpc_port": 0, "http_port": 0, **settings})
    database = Path(chosen.database)
    if not chosen.database_url and home.exists() and not database.exists():
        database.write_bytes(empty_database())  # migrations, which tests/fast/core/store shows, take longer
    engine = engine or FakeEngine()
    if composed is None:
        composition = compose(chosen, engine, SystemClock(), overrides, make_key=keys.next_rsa_key)
    else:
        composition = composed(chosen, engine)
    if collectors is not None:
        composition = replace(composition, collectors=collectors)
    changes = Changes()
    async with (
        lifecycle.control_plane(changes.noted_in(composition)) as running,
        grpc.aio.insecure_channel(running.server.addresses.grpc) as channel,
        AsyncExitStack() as stack,
    ):
        token = await sign_in(channel, running.first.credentials)
        yield Cloud(home, chosen, engine, running, channel, token, changes, stack)


async def call(
    channel: grpc.aio.Channel, path: str, request: Any, metadata: Sequence[tuple[str, str]] = ()
) -> Any:
    """Call a method, such as "nebius.compute.v1.DiskService/Get", without the waiting and caching of the
    client.

    Raises grpc.aio.AioRpcError."""
    rpc = contract.method(path)
    method = channel.unary_unary(
        f"/{path}",
        request_serializer=rpc.input.SerializeToString,
        response_deserializer=rpc.output.FromString,
    )
    return await method(request, metadata=tuple(metadata), timeout=CALL_SECONDS)


async def sign_in(channel: grpc.aio.Channel, credentials: Mapping[str, Any]) -> str:
    """Return an access token for a service account's credentials, as `neo up` writes them."""
    key = credentials["subject-credentials"]
    claims = {"iss": key["iss"], "sub": key["sub"], "aud": "neocloud", "exp": int(time.time()) + 60}
    request = contract.message("nebius.iam.v1.ExchangeTokenRequest")(
        grant_type="urn:ietf:params:oauth:grant-type:token-exchange",
        requested_token_type=f"{TOKEN_TYPE}:access_token",
        subject_token=jwt.encode(
            claims, keys.signing_key(key["private-key"]), algorithm=key["alg"], headers={"kid": key["kid"]}
        ),
        subject_token_type=f"{TOKEN_TYPE}:jwt",
    )
    return (await call(channel, "nebius.iam.v1.TokenExchangeService/Exchange", request)).access_token
