"""Authentication and authorization of S3 requests. Everything that is not allowed is refused.

Answers of the control plane are kept for a while, and dropped when it says that access has changed; see
`data_plane.answer_cache` for what is used while it does not answer.
"""

import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from neocloud.core.clock import Clock
from neocloud.data_plane.addresses import source_network
from neocloud.data_plane.answer_cache import AnswerCache, AnswerTimes, SilenceAge
from neocloud.data_plane.control_plane_client import AwayLog, ControlPlaneUnavailable
from neocloud.data_plane.rate_limits import Buckets, Rate
from neocloud.object_gateway.access import (
    ControlPlane,
    KeyLimit,
    SigningKey,
    TokenOwner,
    UnknownAccessKey,
    UnknownToken,
)
from neocloud.object_gateway.s3 import signature
from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.bucket_view import is_open, view
from neocloud.object_gateway.s3.errors import S3Error, denied, from_away
from neocloud.object_gateway.s3.operations import (
    BUCKET_GET,
    BUCKET_LIST,
    CREATE,
    DELETE,
    GET,
    LIST,
    UPDATE,
    Scope,
)
from neocloud.object_gateway.s3.request import S3Request
from neocloud.object_gateway.s3.settings import S3Settings
from neocloud.object_gateway.s3.signature import Signed
from neocloud.object_store.types import Bucket

logger = logging.getLogger(__name__)
_OF_PROJECT = (GET, CREATE, UPDATE, DELETE, LIST, BUCKET_GET)
"""Permissions of a key that is limited to the objects of a project."""
UNKNOWN_SECONDS = 5.0
KEY_TIMES = AnswerTimes(300.0, UNKNOWN_SECONDS)
RIGHT_TIMES = AnswerTimes(60.0, UNKNOWN_SECONDS)
TOKEN_TIMES = AnswerTimes(30.0, UNKNOWN_SECONDS)
UNKNOWN_PER_SECOND = 20.0
"""Keys that are not known, for which one client (IPv6: one /64 network) makes the control plane look."""
_Asked = TypeVar("_Asked", bound=Hashable)
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Caller:
    subject_id: str = ""
    """"": nobody signed."""
    subject_name: str = ""
    aws_access_key_id: str = ""
    tenant_id: str = ""
    project_id: str = ""
    group_ids: frozenset[str] = frozenset()
    is_presigned: bool = False
    proof: str = ""
    """The proof of the token that was shown; "": a key signed."""
    limit: KeyLimit | None = None
    """The limit of a key for one piece of work; None: the key may do all that the subject may do."""

    @property
    def is_anonymous(self) -> bool:
        return not self.subject_id


ANONYMOUS = Caller()


class Authorizer:
    def __init__(self, control_plane: ControlPlane, clock: Clock, settings: S3Settings) -> None:
        self._control_plane = control_plane
        self._clock = clock
        self._silence = SilenceAge(clock, settings.stale_seconds, settings.down_seconds)
        away = AwayLog(logger, "known callers are served for a while")
        self._keys = AnswerCache[signature.Scope, SigningKey](clock, self._silence, KEY_TIMES, away)
        self._rights = AnswerCache[tuple[str, str, str], frozenset[str]](
            clock, self._silence, RIGHT_TIMES, away
        )
        self._tokens = AnswerCache[bytes, TokenOwner](clock, self._silence, TOKEN_TIMES, away)
        self._unknown = Buckets(Rate(UNKNOWN_PER_SECOND), clock.monotonic)

    def heard(self) -> None:
        """Note that the control plane has just said whether access had changed."""
        self._silence.heard()

    def forget(self) -> None:
        """Ask the control plane again. Called when access changed."""
        self._keys.expire()
        self._rights.expire()
        self._tokens.expire()

    async def authenticate(self, request: S3Request, body: Body) -> Caller:
        """Check the signature, before a byte of the body is read. Raises S3Error."""
        signed = signature.parse(request.incoming)
        if signed is None:
            return ANONYMOUS
        if "x-amz-security-token" in request.headers:
            raise S3Error("InvalidToken", "Session tokens are not used here. Sign with an access key.")
        signature.check_time(signed, self._clock.now())
        signature.check_headers(signed, request.incoming.headers)  # those of the query are signed with it
        key = await self.signing_key(signed.scope, request.client)
        signature.verify(signed, request.incoming, key.key)
        body.expect(signed, key.key)
        return caller_of(key, signed)

    async def signing_key(self, scope: signature.Scope, client: str) -> SigningKey:
        """Raises S3Error."""
        key = self._keys.get(scope)
        if key is None:
            self._limit(self._keys.has(scope), client)
            key = await _answer(self._keys, scope, lambda: self._sign(scope))
        if key is None or (key.expires_at is not None and key.expires_at <= self._clock.now()):
            raise S3Error("InvalidAccessKeyId", "The access key does not exist, or may not be used.")
        return key

    def _limit(self, is_known: bool, client: str) -> None:
        if not is_known and self._unknown.take(source_network(client)):
            raise S3Error("SlowDown", "Too many unknown credentials. Try again later.")

    async def _sign(self, scope: signature.Scope) -> SigningKey | None:
        try:
            return await self._control_plane.sign(scope.aws_access_key_id, scope.day, scope.region)
        except UnknownAccessKey:
            return None

    async def permissions(self, caller: Caller, target_id: str) -> frozenset[str]:
        """Return what the roles of a caller allow on a bucket or project. Raises S3Error."""
        if caller.is_anonymous:
            return frozenset()
        if caller.limit is None:
            return await self._roles(caller, target_id)
        if not target_id or caller.limit.project_id != target_id:
            return frozenset()
        return await self._roles(caller, target_id) & {BUCKET_LIST}

    async def _roles(self, caller: Caller, target_id: str) -> frozenset[str]:
        asked = (caller.subject_id, caller.proof, target_id)
        found = await _answer(
            self._rights,
            asked,
            lambda: self._control_plane.authorize(caller.subject_id, target_id, caller.proof),
        )
        return found or frozenset()

    async def token_owner(self, token: str, client: str) -> TokenOwner | None:
        """Return whose token of the cloud this is; None for any other text. Raises S3Error."""
        digest = sha256(token.encode()).digest()
        if self._tokens.get(digest) is None:
            self._limit(self._tokens.has(digest), client)
        return await _answer(self._tokens, digest, lambda: self._authenticate(token))

    async def _authenticate(self, token: str) -> TokenOwner | None:
        try:
            return await self._control_plane.authenticate(token)
        except UnknownToken:
            return None

    async def is_allowed(
        self, caller: Caller, bucket: Bucket, permission: str, path: str, scope: Scope
    ) -> bool:
        """Return whether a role or the policy of the bucket allows this. Raises S3Error."""
        if caller.limit is not None and not _is_within(caller.limit, bucket, permission, path):
            return False
        seen = view(bucket)
        is_anybody = is_open(bucket) or (not caller.is_anonymous and caller.tenant_id == seen.tenant_id)
        for rule in seen.rules:
            concerned = rule.group_id in caller.group_ids if rule.group_id else is_anybody
            if concerned and rule.allows(permission, path, scope):
                return True
        return not caller.is_anonymous and permission in await self._roles(caller, bucket.id)

    async def require(
        self, caller: Caller, bucket: Bucket, permission: str, path: str = "", scope: Scope = Scope.KEY
    ) -> None:
        """Raises S3Error (AccessDenied)."""
        if not await self.is_allowed(caller, bucket, permission, path, scope):
            raise denied()


async def _answer(
    cache: AnswerCache[_Asked, _Value], asked: _Asked, ask: Callable[[], Awaitable[_Value | None]]
) -> _Value | None:
    """Raises S3Error where the control plane does not answer, and nothing is known that may be used."""
    try:
        return await cache.find(asked, ask)
    except ControlPlaneUnavailable as error:
        raise from_away(error) from error


def caller_of(key: SigningKey, signed: Signed | None = None) -> Caller:
    return Caller(
        key.subject_id,
        key.subject_name,
        key.aws_access_key_id,
        key.tenant_id,
        key.project_id,
        key.group_ids,
        is_presigned=signed is not None and signed.is_presigned,
        limit=key.limit,
    )


def _is_within(limit: KeyLimit, bucket: Bucket, permission: str, path: str) -> bool:
    if limit.project_id:
        return bucket.project_id == limit.project_id and permission in _OF_PROJECT
    allowed = (DELETE,) if limit.deletes else (CREATE,) if limit.writes else (GET, LIST)
    return bucket.id == limit.bucket_id and permission in allowed and path.startswith(limit.prefix)
