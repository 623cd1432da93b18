"""The kinds of buckets, transfers and inventories, their other verbs, and what the object gateway calls."""

from neocloud.core.kind import Kind
from neocloud.services.storage.api import (
    buckets,
    gateway,
    gateway_events,
    gateway_inventories,
    temporary_keys,
    transfers,
)
from neocloud.services.storage.rules import BucketRules
from neocloud.services.storage.rules.inventories import InventoryRules
from neocloud.services.storage.rules.transfers import TransferRules
from neocloud.services.storage.types import (
    BUCKET,
    BUCKET_ID_PREFIX,
    BUCKET_SERVICE,
    INVENTORY,
    INVENTORY_ID_PREFIX,
    INVENTORY_SERVICE,
    TRANSFER,
    TRANSFER_ID_PREFIX,
    TRANSFER_SERVICE,
    BucketState,
    TransferState,
)

KINDS = (
    Kind(
        message=BUCKET,
        rpc=BUCKET_SERVICE,
        id_prefix=BUCKET_ID_PREFIX,
        permission="storage.buckets",
        parent_kinds=("nebius.iam.v1.Container",),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Update"}),
        rules=BucketRules(),
        initial_state=BucketState.CREATING,
        deleting_state=BucketState.SCHEDULED_FOR_DELETION,
        is_reconciled=True,
        is_named_by_rules=True,
    ),
    Kind(
        message=TRANSFER,
        rpc=TRANSFER_SERVICE,
        id_prefix=TRANSFER_ID_PREFIX,
        permission="storage.transfers",
        parent_kinds=("nebius.iam.v1.Container",),
        rules=TransferRules(),
        initial_state=TransferState.ACTIVE,
        is_reconciled=True,
    ),
    Kind(
        message=INVENTORY,
        rpc=INVENTORY_SERVICE,
        id_prefix=INVENTORY_ID_PREFIX,
        permission="storage.inventories",
        parent_kinds=(BUCKET,),
        rules=InventoryRules(),
        is_reconciled=True,
    ),
)

METHODS = (
    *buckets.METHODS,
    *gateway.METHODS,
    *gateway_events.METHODS,
    *gateway_inventories.METHODS,
    *temporary_keys.METHODS,
    *transfers.METHODS,
)
