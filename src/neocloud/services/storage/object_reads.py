"""Objects that the control plane reads from the object gateway for resources of other services.

It signs with a reading key: one bucket, one prefix, minutes, and no more than the account may at that time.
The key is made for each read and stays in memory, so no workload and no log ever has it.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, BinaryIO, TypeVar, cast

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.messages.nebius.storage.v1 import Bucket
from neocloud.services.iam.types import GROUP_MEMBERSHIP, ReadLimit, SignedRequests
from neocloud.services.storage.gateway_link import BucketBoard
from neocloud.services.storage.public import ObjectPlace, ReadProblem, Unreadable
from neocloud.services.storage.rules.policy import policy_allows
from neocloud.services.storage.types import BUCKET, State

GET, LIST = "storage.objects.get", "storage.objects.list"
KEY_LIFETIME = timedelta(minutes=15)
"""A read that has begun goes on; a new request after this time would be refused."""
CHUNK_BYTES = 1024**2
_SECRET = "object-reader"
_FORBIDDEN = frozenset({"AccessDenied", "InvalidAccessKeyId", "403", "SignatureDoesNotMatch"})
_MISSING = frozenset({"NoSuchKey", "NoSuchBucket", "404"})
Result = TypeVar("Result")


class StoreObjectReads:
    """The ObjectReads of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._dependencies = dependencies

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, place: ObjectPlace
    ) -> None:
        bucket = tx.find(BUCKET, resource.parent_id, place.bucket)
        if bucket is None or not _is_served(bucket):
            # Another project's bucket is answered in the same words as one that does not exist.
            raise contract.not_found("bucket of this project", place.bucket)
        if subject is None:
            raise contract.unauthenticated("This call needs a token; sign in first.")
        needed = (GET, LIST) if place.key.endswith("/") or not place.key else (GET,)
        for permission in needed:
            self._require(tx, subject, permission, bucket, place.key)
        known = _readers(tx, resource.id)
        content = {**known, place.bucket: [subject.id, bucket.id]}
        tx.put_secret(resource.id, _SECRET, json.dumps(content).encode())

    def _require(
        self, tx: Transaction, subject: Subject, permission: str, bucket: Resource, path: str
    ) -> None:
        requests = self._dependencies.provided.get(SignedRequests)
        refusal = requests.refusal(tx, subject, permission, bucket.id)
        if refusal is None:
            return
        groups = {row.parent_id for row in tx.owned(subject.id) if row.kind == GROUP_MEMBERSHIP}
        policy = wire.message(bucket, Bucket).spec.bucket_policy
        # A sign-in for other services alone reads nothing, also where everybody may.
        is_whole = subject.scopes is None
        if not (is_whole and policy_allows(policy, groups, permission, path, requests.is_allowed)):
            raise refusal

    async def fetch(self, resource_id: str, place: ObjectPlace, target: BinaryIO, largest_bytes: int) -> None:
        s3 = await self._client(resource_id, place)
        await _answered(place, lambda: _download(s3, place, target, largest_bytes))

    async def names(self, resource_id: str, place: ObjectPlace, most: int) -> Sequence[str]:
        s3 = await self._client(resource_id, place)
        return await _answered(place, lambda: _list(s3, place, most))

    async def _client(self, resource_id: str, place: ObjectPlace) -> Any:
        """Return a client for this place alone. Raises Unreadable."""
        found = await self._dependencies.store.read(lambda tx: _find_reader(tx, resource_id, place))
        if found is None:
            raise Unreadable(
                ReadProblem.MISSING, f"The bucket {place.bucket} was deleted since this was made."
            )
        account_id, bucket = found
        provided = self._dependencies.provided
        endpoint = provided.get(BucketBoard).endpoint
        if not endpoint:
            raise Unreadable(ReadProblem.UNANSWERED, "The object gateway does not run yet.")
        key = await provided.get(SignedRequests).reading_key(
            account_id, bucket.parent_id, ReadLimit(bucket.id, place.key), KEY_LIFETIME
        )
        region = self._dependencies.settings.region
        return await asyncio.to_thread(_new_client, key.aws_access_key_id, key.secret, endpoint, region)


def _find_reader(tx: Transaction, resource_id: str, place: ObjectPlace) -> tuple[str, Resource] | None:
    """Return the account that the resource reads as, and the bucket; None where the bucket is gone, also if
    somebody else has made one of its name."""
    account_id, bucket_id = _readers(tx, resource_id).get(place.bucket, ("", ""))
    bucket = tx.get(bucket_id) if bucket_id else None
    return (account_id, bucket) if bucket is not None and _is_served(bucket) else None


def _readers(tx: Transaction, resource_id: str) -> dict[str, tuple[str, str]]:
    """Return whom a resource reads as and the id of the bucket, by the bucket's name."""
    raw = tx.secret(resource_id, _SECRET)
    return {name: (account, bucket) for name, (account, bucket) in json.loads(raw or b"{}").items()}


def _is_served(bucket: Resource) -> bool:
    return bucket.deleted_at is None and bucket.state != State.SCHEDULED_FOR_DELETION


def _new_client(key_id: str, secret: str, endpoint: str, region: str) -> Any:
    from botocore.credentials import Credentials  # noqa: PLC0415  it takes a while to load

    from neocloud.client.s3 import s3_client  # noqa: PLC0415

    return s3_client(Credentials(key_id, secret), f"http://{endpoint}", region, attempts=1)


def _download(s3: Any, place: ObjectPlace, target: BinaryIO, largest_bytes: int) -> None:
    answer = s3.get_object(Bucket=place.bucket, Key=place.key, ChecksumMode="ENABLED")
    body = answer["Body"]
    with body:
        if answer["ContentLength"] > largest_bytes:
            raise Unreadable(
                ReadProblem.TOO_LARGE,
                f"{place} has {answer['ContentLength']:,} bytes; at most {largest_bytes:,} are read.",
            )
        for chunk in body.iter_chunks(CHUNK_BYTES):  # checks length and checksum at the end
            target.write(chunk)


def _list(s3: Any, place: ObjectPlace, most: int) -> list[str]:
    answer = s3.list_objects_v2(Bucket=place.bucket, Prefix=place.key, MaxKeys=most)
    found = [each["Key"].removeprefix(place.key) for each in answer.get("Contents", ())]
    if answer["IsTruncated"]:
        raise Unreadable(ReadProblem.TOO_LARGE, f"{place} has more than {most:,} objects.")
    if not found:
        raise Unreadable(ReadProblem.MISSING, f"There is no object below {place}.")
    return found


async def _answered(place: ObjectPlace, ask: Callable[[], Result]) -> Result:
    """Run in a thread. Raises Unreadable for what S3 or the connection says."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    try:
        return await asyncio.to_thread(ask)
    except ClientError as error:
        said = cast("dict[str, Any]", error.response).get("Error", {})
        code, message = str(said.get("Code", "")), str(said.get("Message", ""))
        if code in _MISSING:
            raise Unreadable(ReadProblem.MISSING, f"There is no object {place}.") from error
        if code in _FORBIDDEN:
            raise Unreadable(
                ReadProblem.FORBIDDEN,
                f"{place} may not be read any more by the account that made this. Restore its right"
                f" ({GET}), or make it again with another account.",
            ) from error
        raise Unreadable(ReadProblem.UNANSWERED, f"{place}: {message or code}") from error
    except (BotoCoreError, HTTPError) as error:
        raise Unreadable(ReadProblem.UNANSWERED, f"{place}: {error}") from error
