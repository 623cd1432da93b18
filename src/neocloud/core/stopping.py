# pyright: strict
"""Writes into the history that workloads were stopped on purpose, so that nobody pays for them meanwhile.

Called once the engine has stopped them; the next server brings them back and their reconcilers say so.
"""

from collections.abc import Sequence
from dataclasses import replace

from neocloud.core import wire
from neocloud.core.kind import Kind
from neocloud.core.store.protocol import Store, Transaction


async def record_stop(store: Store, kinds: Sequence[Kind]) -> int:
    """Give every live resource of kinds that can stop their stopped state; says how many there were."""

    def work(tx: Transaction) -> int:
        stopped = 0
        for kind in kinds:
            rows = tx.list(kind.message)[0] if kind.stopped_state else ()
            for row in rows:
                is_idle = bool(kind.working_states) and row.state not in kind.working_states
                if row.deleted_at or is_idle or row.state == kind.stopped_state:
                    continue
                status = wire.with_state(row.kind, row.status, kind.stopped_state)
                tx.update(replace(row, state=kind.stopped_state, status=status))
                stopped += 1
        return stopped

    return await store.write(work)
