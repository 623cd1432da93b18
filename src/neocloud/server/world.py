"""The world as the rules see it while the server writes a resource for a caller."""

from datetime import datetime

from neocloud.core.store.protocol import Transaction
from neocloud.core.world import StoreWorld
from neocloud.server.inbound import Inbound
from neocloud.server.runtime import Runtime


class TransactionWorld(StoreWorld):
    def __init__(self, tx: Transaction, runtime: Runtime, inbound: Inbound, now: datetime) -> None:
        super().__init__(
            tx,
            now,
            inventory=runtime.inventory(),
            subject=inbound.subject,
            provided=runtime.dependencies.provided,
        )
