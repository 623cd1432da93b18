"""The context of an operation, and its response."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from neocloud.core.clock import Clock
from neocloud.object_gateway.access import ControlPlane
from neocloud.object_gateway.s3.authorizer import Authorizer, Caller
from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.operations import Operation, Scope
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_gateway.s3.settings import S3Settings
from neocloud.object_store.bodies.protocols import BodyReader
from neocloud.object_store.errors import NoSuchBucket
from neocloud.object_store.last_access import AccessMethod
from neocloud.object_store.store import ObjectStore
from neocloud.object_store.types import Bucket, ObjectVersion

XML = "application/xml"


@dataclass
class Response:
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    """Values as text of Latin-1."""
    body: bytes = b""
    reader: BodyReader | None = None
    """The content in place of `body`; the sender closes it."""
    length: int | None = None
    """The Content-Length where there is no body, as for HEAD."""
    is_counted: bool = False
    """The store has counted the request already, in the transaction of its write."""


def xml(body: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(200, {"Content-Type": XML, **(headers or {})}, body)


@dataclass(frozen=True)
class S3Dependencies:
    """Dependencies that all requests share."""

    store: ObjectStore
    control_plane: ControlPlane
    authorizer: Authorizer
    clock: Clock
    settings: S3Settings
    refresh: Callable[[], Awaitable[None]]
    """Let the buckets here be as the control plane has them by now."""


@dataclass
class S3Context:
    dependencies: S3Dependencies
    request: S3Request
    operation: Operation
    caller: Caller
    body: Body
    bucket: Bucket | None = None
    """The bucket that the request names, if it exists."""

    @property
    def store(self) -> ObjectStore:
        return self.dependencies.store

    @property
    def served(self) -> Bucket:
        """Raises S3Error (NoSuchBucket)."""
        if self.bucket is None:
            raise no_such_bucket(self.request.bucket)
        return self.bucket

    @property
    def key(self) -> str:
        return self.request.key

    @property
    def version_id(self) -> str | None:
        """Raises S3Error for an empty one."""
        given = self.request.query.get("versionId")
        if given == "":
            raise S3Error("InvalidArgument", "Version id cannot be the empty string.")
        return given

    def bucket_named(self, name: str) -> Bucket:
        """Raises S3Error (NoSuchBucket)."""
        try:
            return self.dependencies.store.bucket(name)
        except NoSuchBucket:
            raise no_such_bucket(name) from None

    def note_access(self, version: ObjectVersion, method: AccessMethod, bucket: Bucket | None = None) -> None:
        """Remember a read that is answered, of an object of this bucket or of another one."""
        agent = self.request.header("user-agent")
        self.store.note_access((bucket or self.served).id, version, method, agent)

    async def require(
        self, permission: str, path: str, bucket: Bucket | None = None, scope: Scope = Scope.KEY
    ) -> None:
        """Raises S3Error (AccessDenied)."""
        await self.dependencies.authorizer.require(
            self.caller, bucket or self.served, permission, path, scope
        )


Handler = Callable[[S3Context], Awaitable[Response]]


def no_such_bucket(name: str) -> S3Error:
    return S3Error("NoSuchBucket", "The specified bucket does not exist.", details={"BucketName": name[:255]})
