"""What all custom verbs share: find a ready cluster and open its Slurm."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.service import Call
from neocloud.services.slurm.access import SlurmAccess
from neocloud.services.slurm.slurmrestd import (
    SlurmApi,
    SlurmError,
    SlurmUnreachable,
)
from neocloud.services.slurm.types import CLUSTER, USABLE_STATES


def access(call: Call) -> SlurmAccess:
    return SlurmAccess.of(call.dependencies)


async def ready_cluster(call: Call, cluster_id: str) -> Any:
    """The cluster as a message. Raises ApiError when it is missing or cannot take work yet."""
    row = await call.dependencies.store.read(lambda tx: tx.get(cluster_id))
    if row is None or row.kind != CLUSTER:
        raise contract.not_found("cluster", cluster_id)
    if row.state not in USABLE_STATES:
        raise contract.bad_state(
            cluster_id,
            f'Cluster "{row.name}" is {row.state}, not READY. '
            f"See what it waits for with: neo slurm cluster get {row.name}",
        )
    return wire.resource_message(row)


@asynccontextmanager
async def open_slurm(call: Call, cluster_id: str) -> AsyncIterator[SlurmApi]:
    """The cluster's REST service, with Slurm's errors turned into the API's."""
    await ready_cluster(call, cluster_id)
    try:
        async with access(call).api(cluster_id) as slurm:
            yield slurm
    except SlurmUnreachable as error:
        raise contract.unavailable(f"Slurm does not answer: {error}. Try again in a moment.") from error
    except SlurmError as error:
        raise contract.bad_state(cluster_id, f"Slurm refused: {error}") from error
