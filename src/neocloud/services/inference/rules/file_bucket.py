"""Validation rules of a file bucket, and its owners: accounts that may read, create and delete objects in it.
Pure.
"""

from collections.abc import Iterable, Mapping

from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import FileBucket, FileBucketStatus
from neocloud.services.inference.types import FILE_BUCKET, FILE_FOLDER
from neocloud.services.storage.public import ObjectKeys, ObjectLocation


class FileBucketRules(Rules[FileBucket]):
    def defaults(self, resource: FileBucket) -> None:
        resource.status.state = FileBucketStatus.State.Value("ACTIVE")

    def quota_demand(self, resource: FileBucket) -> Mapping[str, int]:
        return {"inference.file-bucket.count": 1}

    def violations(
        self, new: FileBucket, old: FileBucket | None, reader: ResourceReader
    ) -> Iterable[Violation]:
        if old is not None:
            return
        if not new.metadata.name:
            yield Violation("metadata.name", "is required: a file bucket is deleted by its name")
        others = reader.list(FILE_BUCKET, new.metadata.parent_id)
        if other := next((row for row in others if row.deleted_at is None), None):
            yield Violation(
                "metadata.parent_id", f"the project has the file bucket {other.name} already; delete it first"
            )

    def complete(self, new: FileBucket, old: FileBucket | None, reader: ResourceReader) -> None:
        if old is not None:
            return
        keys, folder = reader.provided.get(ObjectKeys), ObjectLocation(new.spec.bucket, FILE_FOLDER)

        def allow(tx: Transaction) -> None:
            new.status.bucket_id = keys.allow(tx, reader.subject, new.metadata, folder)

        reader.write(allow)
