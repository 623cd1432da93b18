"""Validation rules of inventories, and their owners: accounts that may list the source and write into the
destination. The rights of the account count again at each run.
"""

from collections.abc import Iterable, Mapping

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader, Subject
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.storage.v1 import Bucket, Inventory, InventorySpec
from neocloud.services.iam.types import SignedRequests
from neocloud.services.storage.types import BUCKET, BucketState, write_actor

MAX_PREFIX_BYTES = 1024
MAX_DESTINATION_PREFIX_BYTES = 512
"""Limit that leaves room for the rest of a report's key, some 200 bytes of the 1,024 at most."""
LIST, READ, WRITE = "storage.objects.list", "storage.objects.get", "storage.objects.create"
_FORMATS = tuple(InventorySpec.OutputFormat.Value(each) for each in ("CSV_GZIP", "PARQUET_SNAPPY"))
_SCHEDULES = tuple(InventorySpec.Schedule.Value(each) for each in ("DAILY", "WEEKLY"))
_FIELD = InventorySpec.OptionalField
_TAGS = _FIELD.Value("TAGS")
_SERVED = tuple(
    _FIELD.Value(each)
    for each in (
        "CHECKSUM_ALGORITHMS",
        "INTELLIGENT_TIER",
        "IS_MULTIPART_UPLOAD",
        "LAST_ACCESS",
        "LIFECYCLE_EXPIRATION",
        "TAGS",
    )
)


class InventoryRules(Rules[Inventory]):
    def quota_demand(self, resource: Inventory) -> Mapping[str, int]:
        return {"storage.inventory.count": 1}

    def violations(
        self, new: Inventory, old: Inventory | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        spec = new.spec
        if spec.output_format not in _FORMATS:
            yield Violation("spec.output_format", "must be CSV_GZIP or PARQUET_SNAPPY")
        if spec.schedule not in _SCHEDULES:
            yield Violation("spec.schedule", "must be DAILY or WEEKLY")
        if len(spec.source_prefix.encode()) > MAX_PREFIX_BYTES:
            yield Violation(
                "spec.source_prefix", f"must have {MAX_PREFIX_BYTES:,} bytes at most, as a key has"
            )
        if len(spec.destination_prefix.encode()) > MAX_DESTINATION_PREFIX_BYTES:
            yield Violation(
                "spec.destination_prefix", f"must have {MAX_DESTINATION_PREFIX_BYTES} bytes at most"
            )
        yield from _field_violations(spec)

    def complete(self, new: Inventory, old: Inventory | None, reader: ResourceReader) -> None:
        subject = reader.subject
        if subject is None:
            raise contract.unauthenticated("This call needs a token; sign in first.")
        reader.write(lambda tx: _act_as(tx, subject, new, reader.provided.get(SignedRequests)))


def _field_violations(spec: InventorySpec) -> Iterable[Violation]:
    fields = list(spec.optional_fields)
    for number, field in enumerate(fields):
        path = f"spec.optional_fields[{number}]"
        if field not in _SERVED:
            served = ", ".join(_FIELD.Name(each) for each in _SERVED)
            yield Violation(path, f"is not supported by this cloud yet; choose from {served}")
        elif field in fields[:number]:
            yield Violation(path, "is named twice; name it once")


def _act_as(tx: Transaction, subject: Subject, inventory: Inventory, requests: SignedRequests) -> None:
    """Let the inventory run for the subject. Raises ApiError unless it may list and write."""
    source_id, destination_id = inventory.metadata.parent_id, inventory.spec.destination_bucket_id
    wanted = [(LIST, source_id, "source"), (WRITE, destination_id, "destination")]
    if _TAGS in inventory.spec.optional_fields:
        wanted.append((READ, source_id, "source"))
    for permission, bucket_id, word in wanted:
        refusal = requests.refusal(tx, subject, permission, bucket_id)
        if refusal is not None:
            raise refusal
        bucket = tx.get(bucket_id)
        if bucket is None or bucket.kind != BUCKET or bucket.deleted_at is not None:
            raise contract.not_found(f"{word} bucket", bucket_id)
        if bucket.state == BucketState.SCHEDULED_FOR_DELETION:
            raise contract.bad_state(
                bucket_id, f"The {word} bucket {bucket.name} is scheduled for deletion. Undelete it first."
            )
        if word == "source" and wire.message(bucket, Bucket).spec.HasField("filesystem_bucket"):
            raise contract.bad_state(
                bucket_id,
                f"{bucket.name} is a filesystem bucket, which has no inventories. List it instead.",
            )
    write_actor(tx, inventory.metadata.id, subject.id)
