"""The interface of the object gateway for other services: buckets of their own in it, its reports, objects
that they read for their resources, and how a reconciler waits for it. Nothing is sent to the gateway: it
follows the list of buckets.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import IO, Protocol

from neocloud.core.byte_streams import Readable, Rewritable
from neocloud.core.readers import ResourceReader, Subject
from neocloud.core.reconcile.reconciler import (
    DAEMON_POLL_SECONDS,
    RETRY_SECONDS,
    Context,
    Failed,
    RetryLater,
)
from neocloud.core.store.protocol import Resource, Store, Transaction
from neocloud.engines.base import Reference
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.neocloud.storage.v1 import BucketReport, GatewayBucket

_QUICK_SECONDS = 10.0
"""The gateway applies a change within milliseconds; after this long a reconciler looks less often."""


@dataclass(frozen=True)
class BucketSource:
    """Resources of another service that are kept as buckets of the gateway, each under its own id."""

    kind: str
    permissions: Sequence[str]
    """The permissions that the gateway checks on them."""
    bucket: Callable[[Transaction, Resource], GatewayBucket]
    """Returns the bucket in its desired state."""


class BucketSources(tuple[BucketSource, ...]):
    """The bucket sources of all other services."""


class Filesystems(Protocol):
    """Shared filesystems, which filesystem buckets show. The service that has them provides it."""

    def find(self, reader: ResourceReader, filesystem_id: str, parent_id: str) -> Resource | None:
        """Return the filesystem if a bucket of this project may show it, else None."""
        ...

    def attach(self, reader: ResourceReader, filesystem_id: str, bucket_id: str) -> None:
        """Keep the filesystem from being deleted while the bucket exists. Raises ApiError."""
        ...

    def claim(self, filesystem: Resource, parent_id: str) -> Reference | None:
        """Return the claim to mount, checked again; None where a bucket of this project may not show it."""
        ...

    def is_created(self, filesystem: Resource) -> bool: ...


class GatewayNotifier(Protocol):
    def notify(self) -> None:
        """Let the gateway read its buckets again, after a change that the history of the store does not have:
        of a version alone, or of what is stored beside a resource."""
        ...


class AccessNotifier(Protocol):
    def notify(self) -> None:
        """Let the gateway ask again who may do what, after a change that is not one of a resource of iam.
        From the event loop."""
        ...


class GatewayReports(Protocol):
    """The last reports of the object gateway."""

    endpoint: str
    """Host and port at which it serves: "127.0.0.1:8902"."""

    @property
    def is_reporting(self) -> bool: ...

    def find(self, bucket_id: str) -> BucketReport | None: ...


SCHEME = "s3://"


@dataclass(frozen=True)
class ObjectLocation:
    """An object, or a folder of objects, as people name it: s3://BUCKET/KEY."""

    bucket: str
    key: str
    """The key; for a folder the prefix of its objects, with its slash; "" is the whole bucket."""

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.key}"


def folder_place(bucket: str, prefix: str) -> ObjectLocation:
    """Return the folder of a prefix that may lack its slash."""
    return ObjectLocation(bucket, f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else "")


def place_in(url: str) -> ObjectLocation | None:
    """Return what "s3://BUCKET/KEY" names; None for any other text."""
    bucket, _, key = url.removeprefix(SCHEME).partition("/")
    return ObjectLocation(bucket, key) if url.startswith(SCHEME) and bucket and key else None


class AccessProblem(StrEnum):
    MISSING = "missing"
    FORBIDDEN = "forbidden"
    TOO_LARGE = "too large"
    UNANSWERED = "unanswered"
    """The gateway does not run or does not answer; another try may succeed."""
    DAMAGED = "damaged"
    """The data were cut off or have another checksum, at each of several tries."""
    FULL = "full"
    """The bucket holds all that it may."""
    OCCUPIED = "occupied"
    """Another object is where one was to be written that replaces nothing."""


class ObjectAccessError(Exception):
    """An object cannot be read or written; the message says why, and what to do."""

    def __init__(self, problem: AccessProblem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class Unreadable(ObjectAccessError):
    """An object cannot be read."""


class Unwritable(ObjectAccessError):
    """An object cannot be written."""


class ObjectReads(Protocol):
    """Reads objects for the resources of other services, as the account that made the resource.

    The control plane reads, so the right is checked twice: of the caller when the resource is made,
    and of the account, by the object gateway, at each read. A resource reads the buckets of its own project.
    """

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, place: ObjectLocation
    ) -> None:
        """Let a new resource read this object, or the objects of this folder, as the subject. Raises ApiError
        unless the subject may, and where the project has no such bucket."""
        ...

    async def fetch(
        self, resource_id: str, place: ObjectLocation, target: Rewritable, largest_bytes: int
    ) -> None:
        """Write an object to an empty file. It takes as long as the object is large, so a reconciler runs it
        as BackgroundWork. Raises Unreadable."""
        ...

    async def names(self, resource_id: str, place: ObjectLocation, most: int) -> Sequence[str]:
        """Return the names below a folder. Raises Unreadable, also where there are more than `most`."""
        ...


class ObjectWrites(Protocol):
    """Writes objects for the resources of other services, as the account that made the resource. The right is
    checked twice, as by ObjectReads; of a resource that overwrites, the right to create objects is enough."""

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, folder: ObjectLocation
    ) -> None:
        """Let a new resource write below this folder, as the subject. Raises ApiError unless the subject may,
        and where the project has no such bucket."""
        ...

    async def put(
        self, resource_id: str, folder: ObjectLocation, name: str, file: IO[bytes], size: int
    ) -> None:
        """Write an object of the folder that was allowed: the first `size` bytes of a file. It is visible
        once it is whole. Raises Unwritable."""
        ...

    async def put_once(self, resource_id: str, folder: ObjectLocation, name: str, file: IO[bytes]) -> None:
        """Write an object of the folder that was allowed, of at most 5 GiB, where there is none: all bytes of
        a file. It may be repeated with the same bytes. Raises Unwritable."""
        ...

    async def put_new(self, resource_id: str, place: ObjectLocation, stream: Readable) -> None:
        """Write an object at the place that was allowed, where there is none: all bytes of a stream, which is
        read in another thread. It is visible once it is whole. It may be repeated with the same bytes. Raises
        Unwritable, and what the stream raises."""
        ...


class KeyUse(StrEnum):
    """The single purpose of a key."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"


@dataclass(frozen=True)
class ObjectKey:
    """A key of S3 for one place, and where it is used."""

    aws_access_key_id: str
    secret: str = field(repr=False)
    expires_at: datetime
    endpoint: str
    """Host and port of the object gateway."""
    region: str


class ObjectKeys(Protocol):
    """Keys for another process of the cloud, which keeps objects for a resource of another service, as the
    account that made the resource. The right is checked twice, as by ObjectReads."""

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, folder: ObjectLocation
    ) -> str:
        """Let a new resource read, write and delete objects of this folder, as the subject, and return the id
        of the bucket. Raises ApiError unless the subject may, and where the project has no such bucket."""
        ...

    async def key(self, resource_id: str, place: ObjectLocation, use: KeyUse) -> ObjectKey:
        """Return a key for one object of the folder that was allowed. Raises ObjectAccessError."""
        ...


class GatewayWait:
    """Lets the reconciler of a resource that is kept as a bucket wait for the gateway."""

    def __init__(self, store: Store, reports: GatewayReports, gateway: GatewayNotifier) -> None:
        self._store = store
        self._reports = reports
        self._gateway = gateway

    def report(self, context: Context) -> BucketReport:
        """Return what the gateway reports of it. Raises RetryLater where it reports nothing."""
        report = self._reports.find(context.resource.id)
        if report is None:
            why = (
                "does not know it yet" if self._reports.is_reporting else "does not report; see `neo status`"
            )
            raise RetryLater(f"the object gateway {why}", delay_seconds=poll_seconds(context))
        return report

    async def until_applied(self, context: Context, mode: GatewayBucket.Mode) -> None:
        """Raise RetryLater until the gateway has applied this version of it, in this mode."""
        report = self.report(context)
        wanted, applied = context.resource.resource_version, report.applied_generation
        if applied > wanted:
            await self._overtake(context.resource.id, applied)
        if report.problem:
            raise Failed("GatewayRefused", f"The object gateway cannot serve it: {report.problem}")
        if applied != wanted or report.applied != mode:
            raise RetryLater("the object gateway has not applied it yet", delay_seconds=poll_seconds(context))

    def until_purged(self, context: Context, content: str) -> None:
        """Raise RetryLater until the gateway has removed it with all that it holds, its `content`."""
        report = self._reports.find(context.resource.id)
        if report is not None and report.is_purged:
            return
        problem = report.problem if report is not None else ""
        why = f"the object gateway removes its {content}"
        if problem:
            why = f"the object gateway cannot remove its {content} yet: {problem}"
        raise RetryLater(why, delay_seconds=poll_seconds(context))

    async def _overtake(self, resource_id: str, applied: int) -> None:
        """Go beyond the version that the gateway has: this database is an older backup."""

        def work(tx: Transaction) -> None:
            row = tx.get(resource_id)
            if row is not None and row.resource_version <= applied:
                tx.update(replace(row, resource_version=applied + 1))

        await self._store.write(work)
        self._gateway.notify()
        raise RetryLater("the object gateway has a newer version; this one replaces it", delay_seconds=0.0)


def require_applied(context: Context, generation: int | None) -> None:
    """Raise RetryLater until the gateway has reported the current generation; None: it has reported none."""
    if generation is None or generation < context.resource.resource_version:
        why = "the object gateway has not applied it yet; see `neo status` if this lasts"
        raise RetryLater(why, delay_seconds=poll_seconds(context))


def poll_seconds(context: Context) -> float:
    """Return how long to wait before the gateway's report is looked at again."""
    age = (context.now - context.resource.updated_at).total_seconds()
    return DAEMON_POLL_SECONDS if age < _QUICK_SECONDS else RETRY_SECONDS
