"""Hosts that are drained: nothing new is started on them, and running workloads continue.

The fleet service decides which hosts are drained and writes it into the status of their pool. Services that
place something ask here. Without a pool, or before its hosts are known, nothing is refused.
"""

from collections.abc import Iterable, Mapping

from neocloud.core.reconcile.reconciler import Context, RetryLater
from neocloud.core.store.protocol import Resource
from neocloud.messages.neocloud.fleet.v1 import DrainedHost, HostPoolStatus

HOST_POOL = "neocloud.fleet.v1.HostPool"
RETRY_SECONDS = 5.0


def known_hosts(rows: Iterable[Resource]) -> frozenset[str]:
    return frozenset(name for status in _statuses(rows) for name in status.hosts)


def drained_hosts(rows: Iterable[Resource]) -> Mapping[str, DrainedHost]:
    """Return the drained hosts by name, of the rows of pools of hosts."""
    return {each.host: each for status in _statuses(rows) for each in status.drained}


def no_host(rows: Iterable[Resource]) -> str:
    """Return why nothing can be started on any host, as tenants read it; "" where one takes new work."""
    pools = list(rows)
    hosts, drained = known_hosts(pools), drained_hosts(pools)
    if not hosts or hosts - drained.keys():
        return ""
    reasons = "; ".join(sorted({drained[each].reason for each in hosts}))
    which = "The host is" if len(hosts) == 1 else "All hosts are"
    return f"{which} drained by the operators of this cloud ({reasons}), so nothing new is started"


async def wait_for_host(context: Context) -> None:
    """Raise RetryLater until a host takes new work. For what does not run yet."""
    if why := no_host(await context.list(HOST_POOL)):
        raise RetryLater(
            f"{why[0].lower()}{why[1:]}. It is started once a host takes new work again",
            delay_seconds=RETRY_SECONDS,
        )


def _statuses(rows: Iterable[Resource]) -> Iterable[HostPoolStatus]:
    return (
        HostPoolStatus.FromString(row.status)
        for row in rows
        if row.kind == HOST_POOL and row.deleted_at is None
    )
