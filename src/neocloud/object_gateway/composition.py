"""Build the object gateway from its components."""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from neocloud.core.clock import Clock
from neocloud.core.osfiles import OTHERS, create_file
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.audit_log import AuditLog
from neocloud.object_gateway.gateway import Gateway
from neocloud.object_gateway.oci.app import RegistryApp
from neocloud.object_gateway.oci.context import RegistryDependencies
from neocloud.object_gateway.oci.mirror import Mirrors
from neocloud.object_gateway.oci.tokens import TokenSigner
from neocloud.object_gateway.oci.upstream_registries import Upstream
from neocloud.object_gateway.s3.app import S3App
from neocloud.object_gateway.s3.authorizer import Authorizer
from neocloud.object_gateway.s3.context import S3Dependencies
from neocloud.object_gateway.s3.settings import S3Settings
from neocloud.object_gateway.work.bucket_follower import BucketFollower, Whereabouts
from neocloud.object_gateway.work.inventories.follower import InventoryFollower
from neocloud.object_gateway.work.scan import advisories
from neocloud.object_gateway.work.scan.scanner import Scanner
from neocloud.object_gateway.work.scrub import Scrubber
from neocloud.object_gateway.work.transfers.follower import TransferFollower
from neocloud.object_gateway.work.transfers.runner import TransferNetwork
from neocloud.object_gateway.work.workers import run_workers
from neocloud.object_store.blobs.s3.driver import S3Blobs
from neocloud.object_store.blobs.s3.location import S3Location
from neocloud.object_store.errors import StoreUnavailable
from neocloud.object_store.metadata.location import is_there
from neocloud.object_store.store import ObjectStore, open_store

KEY_BYTES = 32
logger = logging.getLogger(__name__)


def registry_app(
    store: ObjectStore,
    authorizer: Authorizer,
    clock: Clock,
    settings: S3Settings,
    key: bytes,
    mirrors: Mirrors,
) -> RegistryApp:
    """`key` is the store's, from which that of tokens is derived."""
    signer = TokenSigner(key)
    return RegistryApp(
        RegistryDependencies(
            store, authorizer, clock, signer, settings.region, settings.requests_per_second, mirrors
        )
    )


@asynccontextmanager
async def running_objects(
    folder: Path,
    key: bytes,
    control_plane: ControlPlane,
    clock: Clock,
    settings: S3Settings,
    endpoint: str,
    *,
    tls_port: int = 0,
    scrub_bytes_per_second: float = 0,
    advisory_file: Path | None = None,
    transfers: TransferNetwork | None = None,
    place: S3Location | None = None,
    upstreams: Sequence[Upstream] = (),
    metadata: Path | None = None,
) -> AsyncGenerator[Gateway]:
    """Open the store, follow the control plane and run the workers; yield the application to serve.

    `advisory_file` is where the operator puts advisories; None: images are not read. `transfers` says where
    transfers may connect to; None: to this gateway and the public internet. `place` is
    where another engine has the bodies, `metadata` a file with the address of the database of the metadata.
    `upstreams` are the registries elsewhere that may be mirrored.
    """
    store = await open_store(folder, key, clock, place=place, metadata=metadata)
    mirrors = Mirrors(store, clock, upstreams)
    try:
        audit_log = AuditLog(store, control_plane, clock)
        authorizer = Authorizer(control_plane, clock, settings)
        scrubber = Scrubber(store, clock, scrub_bytes_per_second)
        follower = BucketFollower(
            store, control_plane, clock, authorizer, Whereabouts(endpoint, tls_port, lambda: scrubber.last)
        )
        s3 = S3App(
            S3Dependencies(store, control_plane, authorizer, clock, settings, follower.refresh), audit_log
        )
        app = Gateway(s3, registry_app(store, authorizer, clock, settings, key, mirrors), settings.domains)
        network = transfers or TransferNetwork(endpoint, settings.region)
        work = [
            *(follower.run(), run_workers(store, clock), audit_log.run()),
            TransferFollower(store, control_plane, clock, network).run(),
            InventoryFollower(store, control_plane, clock).run(),
        ]
        if isinstance(store.engine.blobs, S3Blobs):
            work.append(store.engine.blobs.watch())
        if scrub_bytes_per_second:
            work.append(scrubber.run())
        if advisory_file is not None:
            work.append(Scanner(store, clock, advisory_file, advisories.index_file(folder)).run())
        loops = [asyncio.create_task(each) for each in work]
        for loop in loops:
            loop.add_done_callback(_note_end)
        try:
            yield app
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
    finally:
        await mirrors.close()
        await store.close()


def _note_end(loop: asyncio.Task[None]) -> None:
    if not loop.cancelled() and (error := loop.exception()) is not None:
        logger.error("A loop of the object gateway ended; restart the gateway", exc_info=error)


def load_or_make_store_key(path: Path) -> bytes:
    """Return the key in this file; a new one where there is neither key nor store.
    Raises StoreUnavailable, OSError."""
    if not path.exists():
        if is_there(path.parent):
            raise StoreUnavailable(
                f"{path} is missing: without it no object can be read. Restore it from the backup."
            )
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        create_file(path, secrets.token_bytes(KEY_BYTES).hex())
    if path.stat().st_mode & OTHERS:
        raise StoreUnavailable(f"{path} is open to others. Set its mode to 600, if you know who read it.")
    try:
        key = bytes.fromhex(path.read_text().strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise StoreUnavailable(f"{path} is damaged. Restore it from the backup.")
    return key
