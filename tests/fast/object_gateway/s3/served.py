"""A real S3 front on a real object store, served over loopback from a thread of the test's process."""

import asyncio
import itertools
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import boto3
import uvloop
from botocore.config import Config
from botocore.exceptions import ClientError
from neocloud.messages.neocloud.storage.v1 import ObjectEvent

from neocloud.core.clock import SystemClock
from neocloud.data_plane.http.protocol import ClientProtocol
from neocloud.data_plane.process import listen, web_server
from neocloud.object_gateway.composition import running_objects
from neocloud.object_gateway.gateway import Gateway
from neocloud.object_gateway.s3.app import S3App
from neocloud.object_gateway.s3.protocol import s3_connections
from neocloud.object_gateway.settings import ObjectsSettings
from neocloud.object_gateway.work.transfers.runner import TransferNetwork
from neocloud.object_store.store import ObjectStore
from neocloud.server import CertificateFolder, ensure_certificate
from neocloud.testing.object_control_plane import Account, FakeControlPlane

KEY = bytes(range(32))
REGION = "eu-north1"
_NAMES = itertools.count(1)
_Result = TypeVar("_Result")


@dataclass
class Served:
    address: tuple[str, int]
    control_plane: FakeControlPlane
    app: Gateway
    loop: asyncio.AbstractEventLoop
    home: Path
    owner: Account
    authority: Path | None = None
    """The certificate that clients trust; None: it is plain HTTP."""
    audited: list[ObjectEvent] = field(default_factory=list[ObjectEvent])

    @property
    def store(self) -> ObjectStore:
        return self.app.store

    @property
    def url(self) -> str:
        return f"http{'s' if self.authority else ''}://{self.address[0]}:{self.address[1]}"

    def call(self, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        """Run something in the loop of the server."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def client(self, account: Account | None = None, *, style: str = "path", **config: Any) -> Any:
        who = account or self.owner
        settings: dict[str, Any] = {
            "signature_version": "s3v4",
            "s3": {"addressing_style": style},
            "retries": {"max_attempts": 0},
            "read_timeout": 20,
            **config,
        }
        return boto3.client(
            "s3",
            endpoint_url=self.url,
            verify=str(self.authority) if self.authority else None,
            region_name=REGION,
            aws_access_key_id=who.aws_access_key_id,
            aws_secret_access_key=who.secret,
            config=Config(**settings),
        )

    def account(self, **changes: Any) -> Account:
        number = next(_NAMES)
        return self.control_plane.add(Account(f"NCAK{number:012d}", f"secret-{number}", **changes))

    def make_bucket(self, account: Account | None = None) -> str:
        name = f"bucket-{next(_NAMES)}"
        self.client(account).create_bucket(
            Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION}
        )
        return name

    def raw(self, data: bytes, *, seconds: float = 10.0) -> bytes:
        """Send bytes, and return all that comes back until the server closes."""
        with socket.create_connection(self.address, timeout=seconds) as connection:
            connection.sendall(data)
            return read_all(connection)


def read_all(connection: socket.socket) -> bytes:
    found = b""
    while data := connection.recv(65536):
        found += data
    return found


def error_of(call: Any, *args: Any, **given: Any) -> tuple[int, str]:
    """Return status and code of the error that a call of boto3 raises."""
    try:
        call(*args, **given)
    except ClientError as error:
        response: Any = error.response
        return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]
    raise AssertionError("It was not refused.")


@contextmanager
def serving(
    home: Path,
    *,
    tls: bool = False,
    trusted: ssl.SSLContext | None = None,
    control_plane: FakeControlPlane | None = None,
    **changes: Any,
) -> Iterator[Served]:
    ready = threading.Event()
    state: dict[str, Any] = {}
    authority = None
    if tls:
        ensure_certificate(home / "tls", ("s3.cloud.test", "127.0.0.1"), datetime.now(UTC))
        folder = CertificateFolder(home / "tls")
        authority = folder.authority
        changes.update(tls_certificate=folder.server, tls_key=folder.server_key)

    async def main() -> None:
        settings = ObjectsSettings(home=home, api="", port=0, **changes)
        known = control_plane or FakeControlPlane()
        owner = known.add(Account("NCAKOWNER0000000", "the-secret-of-the-owner"))
        listener = listen("127.0.0.1", 0, settings.write_seconds)
        endpoint = "{}:{}".format(*listener.getsockname())
        try:
            async with running_objects(
                *(home / "objects", KEY, known, SystemClock(), settings.s3, endpoint),
                place=settings.place,
                upstreams=settings.upstreams,
                metadata=settings.metadata,
                transfers=TransferNetwork(
                    endpoint, settings.region, settings.allow_private_transfers, trusted=trusted
                ),
            ) as app:
                connections = s3_connections(settings)
                web = web_server(app, ClientProtocol, settings, connections, tls=tls)
                checking = asyncio.create_task(connections.check_periodically())
                loop = asyncio.get_running_loop()
                found = Served(listener.getsockname(), known, app, loop, home, owner, authority)
                app.s3.audit = _Kept(app.s3, found.audited)
                state.update(served=found, web=web)
                loop.call_soon(ready.set)
                await web.serve(sockets=[listener])
                checking.cancel()
        except BaseException as error:
            state["error"] = error
            raise
        finally:
            ready.set()

    thread = threading.Thread(target=lambda: uvloop.run(main()), daemon=True)
    thread.start()
    assert ready.wait(30)
    if "error" in state:
        raise state["error"]
    served: Served = state["served"]
    try:
        yield served
    finally:
        served.loop.call_soon_threadsafe(state["web"].end)
        thread.join(30)
        assert not thread.is_alive()


class _Kept:
    def __init__(self, app: S3App, events: list[ObjectEvent]) -> None:
        self._audit, self._events = app.audit, events

    def record(self, event: ObjectEvent) -> None:
        self._events.append(event)
        self._audit.record(event)
