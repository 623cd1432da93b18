"""Object storage: buckets, transfers, inventories, and what the object gateway asks and tells."""

from neocloud.core.service import Service
from neocloud.data_plane.gateway_keys import ObjectGatewayKey, load_or_make_object_gateway_key
from neocloud.services.storage.api import KINDS, METHODS
from neocloud.services.storage.gateway_link import (
    AccessChanges,
    BucketBoard,
    BucketChanges,
    InventoryBoard,
    InventoryChanges,
    TransferBoard,
    TransferChanges,
)
from neocloud.services.storage.object_keys import StoreObjectKeys
from neocloud.services.storage.object_reads import StoreObjectReads
from neocloud.services.storage.object_writes import StoreObjectWrites
from neocloud.services.storage.public import (
    AccessNotifier,
    GatewayNotifier,
    GatewayReports,
    ObjectKeys,
    ObjectReads,
    ObjectWrites,
)
from neocloud.services.storage.reconcile import reconcilers
from neocloud.services.storage.report import report

SERVICE = Service(
    name="storage",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    report=report,
    provides={
        BucketBoard: lambda dependencies: BucketBoard(dependencies.clock),
        TransferBoard: lambda dependencies: TransferBoard(),
        InventoryBoard: lambda dependencies: InventoryBoard(),
        AccessNotifier: lambda dependencies: dependencies.provided.get(AccessChanges),
        GatewayNotifier: lambda dependencies: dependencies.provided.get(BucketChanges),
        GatewayReports: lambda dependencies: dependencies.provided.get(BucketBoard),
        ObjectKeys: StoreObjectKeys,
        ObjectReads: StoreObjectReads,
        ObjectWrites: StoreObjectWrites,
        ObjectGatewayKey: lambda dependencies: load_or_make_object_gateway_key(dependencies.settings.home),
    },
)

__all__ = ["SERVICE", "AccessChanges", "BucketChanges", "InventoryChanges", "TransferChanges"]
