"""What of a pricing policy is worked out when it is read: how many machines run under it."""

from datetime import datetime
from typing import Any

from neocloud.core.store.protocol import Transaction
from neocloud.services.billing.rules.pricing_policy import running_under
from neocloud.services.compute.types import policy_namespace


def pricing_policy_view(policy: Any, tx: Transaction, now: datetime) -> None:
    holders = tx.reservations(policy_namespace(policy.metadata.id))
    policy.status.running_vm_count = len(running_under(holders, tx.get))
