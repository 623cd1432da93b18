"""S3 clients that use the objects of a bucket for a resource of another service, and the rights they need.

A client signs with a limited key: one bucket, one prefix, reading or writing, and no more than the account
may at that time. The key stays in memory, so no workload and no log ever has it.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.s3_calls import S3
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.data_plane.access_keys import KeyLimit
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.nebius.storage.v1 import Bucket
from neocloud.services.iam.types import GROUP_MEMBERSHIP, SignedRequests, TemporaryKey
from neocloud.services.storage.gateway_link import BucketBoard
from neocloud.services.storage.public import AccessProblem, ObjectAccessError, ObjectKey, ObjectLocation
from neocloud.services.storage.rules.policy import policy_allows
from neocloud.services.storage.types import BUCKET, BucketState

_FORBIDDEN = frozenset({"AccessDenied", "InvalidAccessKeyId", "403", "SignatureDoesNotMatch"})
_MISSING = frozenset({"NoSuchKey", "NoSuchBucket", "404"})
MOST_THREADS = 16
"""Threads of each use. They are not those that everything else of the control plane shares."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Use:
    """The use of objects by a resource."""

    secret: str
    """Under which name the store has who does it, beside the resource."""
    writes: bool
    key_lifetime: timedelta
    is_renewed: bool
    """Whether a client gets another key while it is used for longer."""
    attempts: int
    """Attempts of each request."""
    error: type[ObjectAccessError]
    deletes: bool = False
    """It deletes objects instead; `writes` is False then."""


class ObjectClients:
    def __init__(self, dependencies: Dependencies, use: Use) -> None:
        self._dependencies = dependencies
        self._use = use
        self._threads = ThreadPoolExecutor(MOST_THREADS, thread_name_prefix=use.secret)

    def allow(
        self,
        tx: Transaction,
        subject: Subject | None,
        resource: ResourceMetadata,
        place: ObjectLocation,
        permissions: Sequence[str],
    ) -> None:
        """Let a new resource use this place as the subject. Raises ApiError unless the subject has these
        permissions there, and where the project has no such bucket."""
        bucket = tx.find(BUCKET, resource.parent_id, place.bucket)
        if bucket is None or not _is_served(bucket):
            # Another project's bucket is answered in the same words as one that does not exist.
            raise contract.not_found("bucket of this project", place.bucket)
        if subject is None:
            raise contract.unauthenticated("This call needs a token; sign in first.")
        for permission in permissions:
            self._require(tx, subject, permission, bucket, place.key)
        content = {**self._accounts(tx, resource.id), place.bucket: [subject.id, bucket.id]}
        tx.put_secret(resource.id, self._use.secret, json.dumps(content).encode())

    def _require(
        self, tx: Transaction, subject: Subject, permission: str, bucket: Resource, path: str
    ) -> None:
        requests = self._dependencies.provided.get(SignedRequests)
        refusal = requests.refusal(tx, subject, permission, bucket.id)
        if refusal is None:
            return
        groups = {row.parent_id for row in tx.owned(subject.id) if row.kind == GROUP_MEMBERSHIP}
        policy = wire.message(bucket, Bucket).spec.bucket_policy
        # A sign-in for other services alone uses nothing, also where everybody may.
        is_whole = subject.scopes is None
        if not (is_whole and policy_allows(policy, groups, permission, path, requests.is_allowed)):
            raise refusal

    async def client(self, resource_id: str, place: ObjectLocation) -> S3:
        """Return an S3 client for this place alone. Raises ObjectAccessError."""
        account_id, bucket, endpoint = await self._located(resource_id, place)
        loop = asyncio.get_running_loop()
        key = await self._key(account_id, bucket, place)

        def renew() -> TemporaryKey:
            asking = self._key(account_id, bucket, place)
            return asyncio.run_coroutine_threadsafe(asking, loop).result()

        region, use = self._dependencies.settings.region, self._use
        again = renew if use.is_renewed else None
        return await asyncio.to_thread(_new_client, key, again, endpoint, region, use.attempts)

    async def key(self, resource_id: str, place: ObjectLocation) -> ObjectKey:
        """Return a key for this place alone, for another process of the cloud. Raises ObjectAccessError."""
        account_id, bucket, endpoint = await self._located(resource_id, place)
        found = await self._key(account_id, bucket, place)
        region = self._dependencies.settings.region
        return ObjectKey(found.aws_access_key_id, found.secret, found.expires_at, endpoint, region)

    async def _located(self, resource_id: str, place: ObjectLocation) -> tuple[str, Resource, str]:
        """Return the account that the resource acts as, the bucket, and the endpoint of the gateway."""
        found = await self._dependencies.store.read(lambda tx: self._find(tx, resource_id, place))
        if found is None:
            raise self._use.error(
                AccessProblem.MISSING, f"The bucket {place.bucket} was deleted since this was made."
            )
        endpoint = self._dependencies.provided.get(BucketBoard).endpoint
        if not endpoint:
            raise self._use.error(AccessProblem.UNANSWERED, "The object gateway does not run yet.")
        return *found, endpoint

    async def _key(self, account_id: str, bucket: Resource, place: ObjectLocation) -> TemporaryKey:
        limit = KeyLimit(bucket.id, place.key, self._use.writes, self._use.deletes)
        requests = self._dependencies.provided.get(SignedRequests)
        return await requests.limited_key(account_id, bucket.parent_id, limit, self._use.key_lifetime)

    def _find(self, tx: Transaction, resource_id: str, place: ObjectLocation) -> tuple[str, Resource] | None:
        """Return the account that the resource acts as, and the bucket; None where the bucket is gone, also
        if somebody else has made one of its name."""
        account_id, bucket_id = self._accounts(tx, resource_id).get(place.bucket, ("", ""))
        bucket = tx.get(bucket_id) if bucket_id else None
        return (account_id, bucket) if bucket is not None and _is_served(bucket) else None

    def _accounts(self, tx: Transaction, resource_id: str) -> dict[str, tuple[str, str]]:
        """Return whom a resource acts as and the id of the bucket, by the bucket's name."""
        raw = tx.secret(resource_id, self._use.secret)
        return {name: (account, bucket) for name, (account, bucket) in json.loads(raw or b"{}").items()}

    async def answered(
        self, place: ObjectLocation, permission: str, doing: str, ask: Callable[[], Result]
    ) -> Result:
        """Run in a thread. Raises ObjectAccessError, also for what S3 or the connection says."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        from urllib3.exceptions import HTTPError  # noqa: PLC0415

        failure = self._use.error
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except ClientError as error:
            said = error.response.get("Error", {})
            code, message = str(said.get("Code", "")), str(said.get("Message", ""))
            if code in _MISSING:
                raise failure(AccessProblem.MISSING, f"There is no object {place}.") from error
            if code in _FORBIDDEN:
                raise failure(
                    AccessProblem.FORBIDDEN,
                    f"{place} may not be {doing} any more by the account that made this. Restore its right"
                    f" ({permission}), or make it again with another account.",
                ) from error
            if code == "QuotaExceeded":
                raise failure(AccessProblem.FULL, f"{place}: {message or code}") from error
            raise failure(AccessProblem.UNANSWERED, f"{place}: {message or code}") from error
        except (BotoCoreError, HTTPError) as error:
            raise failure(AccessProblem.UNANSWERED, f"{place}: {error}") from error


def _is_served(bucket: Resource) -> bool:
    return bucket.deleted_at is None and bucket.state != BucketState.SCHEDULED_FOR_DELETION


def _new_client(
    key: TemporaryKey, renew: Callable[[], TemporaryKey] | None, endpoint: str, region: str, attempts: int
) -> S3:
    from botocore.credentials import Credentials, RefreshableCredentials  # noqa: PLC0415  slow to load

    from neocloud.client.s3 import s3_client  # noqa: PLC0415

    credentials = Credentials(key.aws_access_key_id, key.secret)
    if renew is not None:
        credentials = RefreshableCredentials.create_from_metadata(
            _metadata(key), lambda: _metadata(renew()), "neo"
        )
    return s3_client(credentials, f"http://{endpoint}", region, attempts=attempts)


def _metadata(key: TemporaryKey) -> dict[str, str | None]:
    secret = {"access_key": key.aws_access_key_id, "secret_key": key.secret}
    return {**secret, "token": None, "expiry_time": key.expires_at.isoformat()}
