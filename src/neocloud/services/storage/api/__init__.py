# pyright: strict
"""The kind of buckets, verbs beyond the standard ones, and the methods that the object gateway calls."""

from neocloud.core.kind import Kind
from neocloud.services.storage.api import buckets, gateway, temporary_keys
from neocloud.services.storage.rules import BucketRules
from neocloud.services.storage.types import BUCKET, BUCKET_ID_PREFIX, BUCKET_SERVICE, State

KINDS = (
    Kind(
        message=BUCKET,
        rpc=BUCKET_SERVICE,
        id_prefix=BUCKET_ID_PREFIX,
        permission="storage.buckets",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Update"}),
        rules=BucketRules(),
        initial_state=State.CREATING,
        deleting_state=State.SCHEDULED_FOR_DELETION,
        is_reconciled=True,
        is_named_by_rules=True,
    ),
)

METHODS = (*buckets.METHODS, *gateway.METHODS, *temporary_keys.METHODS)
