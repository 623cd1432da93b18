"""Objects that the control plane reads from the object gateway for resources of other services."""

from collections.abc import Sequence
from datetime import timedelta

from neocloud.core.byte_streams import Rewritable
from neocloud.core.readers import Subject
from neocloud.core.s3_calls import S3
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.storage.object_clients import ObjectClients, Use
from neocloud.services.storage.public import AccessProblem, ObjectLocation, Unreadable

GET, LIST = "storage.objects.get", "storage.objects.list"
KEY_LIFETIME = timedelta(minutes=15)
"""A read in progress continues; a new request after this time would be refused."""
CHUNK_BYTES = 1024**2
WAITS_SECONDS = (1.0, 4.0, 15.0)
"""Before each further try of an object that arrived damaged: longer than the gateway needs to start again."""
_USE = Use(
    "object-reader", writes=False, key_lifetime=KEY_LIFETIME, is_renewed=False, attempts=1, error=Unreadable
)


class StoreObjectReads:
    """The ObjectReads of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._clients = ObjectClients(dependencies, _USE)
        self._clock = dependencies.clock

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, place: ObjectLocation
    ) -> None:
        needed = (GET, LIST) if place.key.endswith("/") or not place.key else (GET,)
        self._clients.allow(tx, subject, resource, place, needed)

    async def fetch(
        self, resource_id: str, place: ObjectLocation, target: Rewritable, largest_bytes: int
    ) -> None:
        for wait in (*WAITS_SECONDS, None):
            s3 = await self._clients.client(resource_id, place)
            try:
                await self._clients.answered(
                    place, GET, "read", lambda s3=s3: _download(s3, place, target, largest_bytes)
                )
                return
            except Unreadable as error:
                if error.problem is not AccessProblem.DAMAGED or wait is None:
                    raise
            target.seek(0)
            target.truncate()
            await self._clock.sleep(wait)

    async def names(self, resource_id: str, place: ObjectLocation, most: int) -> Sequence[str]:
        s3 = await self._clients.client(resource_id, place)
        return await self._clients.answered(place, GET, "read", lambda: _list(s3, place, most))


def _download(s3: S3, place: ObjectLocation, target: Rewritable, largest_bytes: int) -> None:
    from botocore.exceptions import BotoCoreError, ReadTimeoutError  # noqa: PLC0415
    from urllib3.exceptions import HTTPError  # noqa: PLC0415

    answer = s3.get_object(Bucket=place.bucket, Key=place.key, ChecksumMode="ENABLED")
    body = answer["Body"]
    with body:
        if answer["ContentLength"] > largest_bytes:
            raise Unreadable(
                AccessProblem.TOO_LARGE,
                f"{place} has {answer['ContentLength']:,} bytes; at most {largest_bytes:,} are read.",
            )
        try:
            for chunk in body.iter_chunks(CHUNK_BYTES):  # checks length and checksum at the end
                target.write(chunk)
        except ReadTimeoutError:
            raise
        except (BotoCoreError, HTTPError) as error:
            raise Unreadable(
                AccessProblem.DAMAGED,
                f"{place} arrived damaged {len(WAITS_SECONDS) + 1} times: {error}. Upload it again; the"
                " operator finds out more with `neo storage verify`.",
            ) from error


def _list(s3: S3, place: ObjectLocation, most: int) -> list[str]:
    answer = s3.list_objects_v2(Bucket=place.bucket, Prefix=place.key, MaxKeys=most)
    found = [each["Key"].removeprefix(place.key) for each in answer.get("Contents", ())]
    if answer["IsTruncated"]:
        raise Unreadable(AccessProblem.TOO_LARGE, f"{place} has more than {most:,} objects.")
    if not found:
        raise Unreadable(AccessProblem.MISSING, f"There is no object below {place}.")
    return found
