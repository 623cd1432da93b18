"""The submissions of a deployment's replicas on a Slurm cluster, stored beside the deployment.

A token is stored before the job is submitted, and the number after: see `Submission` in `slurm/types.py`.
"""

import json
from collections.abc import Mapping

from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.slurm.types import Submission

SECRET_NAME = "slurm.jobs"


class ReplicaSubmissions:
    def __init__(self, store: Store) -> None:
        self._store = store

    async def read(self, deployment_id: str) -> dict[str, Submission] | None:
        """Return the submissions by replica; None where an earlier release stored none."""
        return await self._store.read(lambda tx: _read(tx, deployment_id))

    async def keep(self, deployment_id: str, changed: Mapping[str, Submission]) -> None:
        """Store these, beside those of other replicas."""
        await self._store.write(lambda tx: _write(tx, deployment_id, changed))


def _read(tx: Transaction, deployment_id: str) -> dict[str, Submission] | None:
    raw = tx.secret(deployment_id, SECRET_NAME)
    if raw is None:
        return None
    return {replica: Submission(token, number) for replica, (token, number) in json.loads(raw).items()}


def _write(tx: Transaction, deployment_id: str, changed: Mapping[str, Submission]) -> None:
    all_of_them = {**(_read(tx, deployment_id) or {}), **changed}
    content = {replica: [each.token, each.job_id] for replica, each in all_of_them.items()}
    tx.put_secret(deployment_id, SECRET_NAME, json.dumps(content).encode())
