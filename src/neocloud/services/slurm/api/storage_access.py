"""A person's consent to keys for object storage on a cluster: that person alone decides, since root of
the cluster can read them. A sign-in that is limited, or of somebody who acts as the account, may not allow
it.
"""

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.service import Call, Method, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.slurm.v1 import (
    AllowStorageAccessRequest,
    AllowStorageAccessResponse,
    Cluster,
    WithdrawStorageAccessRequest,
    WithdrawStorageAccessResponse,
)
from neocloud.services.iam.types import WorkloadKeys
from neocloud.services.slurm.types import CLUSTER
from neocloud.services.storage.public import AccessNotifier

SERVICE = "neocloud.slurm.v1.StorageAccessService"


async def allow(call: Call, request: AllowStorageAccessRequest) -> Write[AllowStorageAccessResponse]:
    person = _person(call)
    if person.scopes is not None or person.impersonator_id:
        raise contract.ApiError(
            contract.Code.PERMISSION_DENIED,
            "Only a sign-in without limits may allow access to object storage: neo login",
        )
    keys, now = call.dependencies.provided.get(WorkloadKeys), call.dependencies.clock.now()

    def grant(tx: Transaction) -> AllowStorageAccessResponse:
        row = _cluster_of(tx, request.cluster_id, person.id)
        keys.grant(tx, row.id, person.id)
        tx.enqueue(row.id, now)
        return AllowStorageAccessResponse()

    return Write(grant)


async def withdraw(call: Call, request: WithdrawStorageAccessRequest) -> Write[WithdrawStorageAccessResponse]:
    person, provided = _person(call), call.dependencies.provided
    keys, now = provided.get(WorkloadKeys), call.dependencies.clock.now()

    def end(tx: Transaction) -> WithdrawStorageAccessResponse:
        row = tx.get(request.cluster_id)
        is_known = row is not None and row.kind == CLUSTER and person.id in keys.granted(tx, row.id)
        if row is None or not is_known:
            _cluster_of(tx, request.cluster_id, person.id)  # a user without keys; others learn of no cluster
            return WithdrawStorageAccessResponse()
        keys.withdraw(tx, row.id, person.id)
        tx.enqueue(row.id, now)
        return WithdrawStorageAccessResponse()

    return Write(end, after_commit=provided.get(AccessNotifier).notify)


def _person(call: Call) -> Subject:
    if call.subject is None or call.subject.kind != "user":
        raise contract.ApiError(
            contract.Code.FAILED_PRECONDITION,
            "Only people decide on keys of their own. Name a service account in the cluster instead:"
            " spec.service_account_id",
        )
    return call.subject


def _cluster_of(tx: Transaction, cluster_id: str, account_id: str) -> Resource:
    """Return a cluster that the account is a user of. Raises ApiError, the same for any other."""
    row = tx.get(cluster_id)
    if row is not None and row.kind == CLUSTER and row.deleted_at is None:
        users = wire.message(row, Cluster).status.users
        if any(user.account_id == account_id and user.uid for user in users):
            return row
    raise contract.not_found("cluster that you are a user of by a group", cluster_id)


METHODS = (
    Method(f"{SERVICE}/Allow", allow, permission="", is_change=True),
    Method(f"{SERVICE}/Withdraw", withdraw, permission="", is_change=True),
)
