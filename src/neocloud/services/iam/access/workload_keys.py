"""The WorkloadKeys of types.py, over the store."""

from collections.abc import Mapping
from datetime import timedelta
from hashlib import sha256

from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.authentication import find_account
from neocloud.services.iam.access.temporary_keys import (
    grants_of,
    issue_workload_key,
    put_grant,
    withdraw_grant,
)
from neocloud.services.iam.types import TemporaryKey

_DIGEST_CHARS = 12


class StoreWorkloadKeys:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def grant(self, tx: Transaction, resource_id: str, account_id: str) -> None:
        put_grant(tx, resource_id, account_id)

    def withdraw(self, tx: Transaction, resource_id: str, account_id: str) -> None:
        withdraw_grant(tx, resource_id, account_id)

    def granted(self, tx: Transaction, resource_id: str) -> Mapping[str, str]:
        grants = grants_of(tx, resource_id)
        return {account_id: _digest(grant) for account_id, grant in grants.items()}

    def is_usable(self, tx: Transaction, account_id: str) -> bool:
        return find_account(tx, account_id) is not None

    async def issue(self, resource_id: str, account_id: str, lifetime: timedelta) -> TemporaryKey | None:
        now = self._clock.now()
        return await self._store.write(
            lambda tx: issue_workload_key(tx, resource_id, account_id, now, now + lifetime)
        )


def _digest(grant: str) -> str:
    return sha256(grant.encode()).hexdigest()[:_DIGEST_CHARS]
