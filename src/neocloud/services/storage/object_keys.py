"""Keys for objects that another process of the cloud keeps for a resource, each for one object and use."""

from datetime import timedelta

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Transaction
from neocloud.messages.nebius.common.v1 import ResourceMetadata
from neocloud.services.storage.object_clients import ObjectClients, Use
from neocloud.services.storage.public import KeyUse, ObjectAccessError, ObjectKey, ObjectLocation
from neocloud.services.storage.types import BUCKET

PERMISSIONS = ("storage.objects.get", "storage.objects.create", "storage.objects.delete")
KEY_LIFETIME = timedelta(hours=1)
"""Each part of a large upload is a request of its own, and none may come later."""


class StoreObjectKeys:
    """The ObjectKeys of public.py."""

    def __init__(self, dependencies: Dependencies) -> None:
        self._clients = {use: ObjectClients(dependencies, _use(use)) for use in KeyUse}

    def allow(
        self, tx: Transaction, subject: Subject | None, resource: ResourceMetadata, folder: ObjectLocation
    ) -> str:
        self._clients[KeyUse.READ].allow(tx, subject, resource, folder, PERMISSIONS)
        bucket = tx.find(BUCKET, resource.parent_id, folder.bucket)
        if bucket is None:
            raise contract.not_found("bucket of this project", folder.bucket)
        return bucket.id

    async def key(self, resource_id: str, place: ObjectLocation, use: KeyUse) -> ObjectKey:
        return await self._clients[use].key(resource_id, place)


def _use(use: KeyUse) -> Use:
    """All uses share the account that `allow` stores."""
    return Use(
        "object-keys",
        writes=use is KeyUse.WRITE,
        deletes=use is KeyUse.DELETE,
        key_lifetime=KEY_LIFETIME,
        is_renewed=False,
        attempts=1,
        error=ObjectAccessError,
    )
