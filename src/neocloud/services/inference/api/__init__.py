"""The kinds and methods of inference, and the permission that each needs."""

import asyncio

from neocloud.core import contract, wire
from neocloud.core.kind import Kind
from neocloud.core.service import AnyMethod, Call, Method, Write
from neocloud.core.store.protocol import Transaction
from neocloud.messages.neocloud.inference.v1 import (
    Model,
    ReadDeploymentLogRequest,
    ReadDeploymentLogResponse,
    ReadTokenizerRequest,
    ReadTokenizerResponse,
    TokenizerFile,
    WakeDeploymentRequest,
    WakeDeploymentResponse,
)
from neocloud.services.inference.api import gateway
from neocloud.services.inference.api.gates import override_gate
from neocloud.services.inference.api.releases import promote, roll_back
from neocloud.services.inference.gateway_link import TrafficBoard
from neocloud.services.inference.public import ModelFolders, WeightsGone, read_tokenizer_files
from neocloud.services.inference.reconcile.backends import replica_backends
from neocloud.services.inference.reconcile.replica_log import LogPosition
from neocloud.services.inference.rules import DeploymentRules, FileBucketRules, ModelRules, ReleaseRules
from neocloud.services.inference.rules.deployment import BudgetRules, budget_view
from neocloud.services.inference.types import (
    BUDGET,
    BUDGET_ID_PREFIX,
    DEPLOYMENT,
    DEPLOYMENT_ID_PREFIX,
    FILE_BUCKET,
    FILE_BUCKET_ID_PREFIX,
    MODEL,
    MODEL_ID_PREFIX,
    PROJECT,
    RELEASE,
    RELEASE_ID_PREFIX,
    REPLICA_RESERVATION,
    RESERVATION_HELD,
    RESERVATION_ID_PREFIX,
    RESERVATION_STOPPED,
    DeploymentState,
    ModelState,
    ReleaseState,
    replica_name,
)

_DEPLOYMENTS = "neocloud.inference.v1.DeploymentService"
_RELEASES = "neocloud.inference.v1.ReleaseService"

MODELS = Kind(
    message=MODEL,
    rpc="neocloud.inference.v1.ModelService",
    id_prefix=MODEL_ID_PREFIX,
    permission="inference.models",
    parent_kinds=(PROJECT,),
    rules=ModelRules(),
    initial_state=ModelState.CREATING,
    is_reconciled=True,
    is_named_by_rules=True,
)
DEPLOYMENTS = Kind(
    message=DEPLOYMENT,
    rpc=_DEPLOYMENTS,
    id_prefix=DEPLOYMENT_ID_PREFIX,
    permission="inference.deployments",
    parent_kinds=(PROJECT,),
    rules=DeploymentRules(),
    initial_state=DeploymentState.CREATING,
    stopped_state=DeploymentState.STOPPED,
    is_reconciled=True,
)
RESERVATIONS = Kind(
    message=REPLICA_RESERVATION,
    rpc=_DEPLOYMENTS,
    id_prefix=RESERVATION_ID_PREFIX,
    permission="inference.replicaReservations",
    parent_kinds=(PROJECT,),
    verbs=frozenset(),
    initial_state=RESERVATION_HELD,
    stopped_state=RESERVATION_STOPPED,
)
BUDGETS = Kind(
    message=BUDGET,
    rpc="neocloud.inference.v1.BudgetService",
    id_prefix=BUDGET_ID_PREFIX,
    permission="inference.budgets",
    parent_kinds=(PROJECT,),
    rules=BudgetRules(),
    initial_state="ACTIVE",
    outside_view=budget_view,
)

FILE_BUCKETS = Kind(
    message=FILE_BUCKET,
    rpc="neocloud.inference.v1.FileBucketService",
    id_prefix=FILE_BUCKET_ID_PREFIX,
    permission="inference.fileBuckets",
    parent_kinds=(PROJECT,),
    verbs=frozenset({"Create", "Get", "GetByName", "List", "Delete"}),
    rules=FileBucketRules(),
    initial_state="ACTIVE",
)

RELEASES = Kind(
    message=RELEASE,
    rpc=_RELEASES,
    id_prefix=RELEASE_ID_PREFIX,
    permission="inference.releases",
    parent_kinds=(PROJECT,),
    rules=ReleaseRules(),
    initial_state=ReleaseState.ACTIVE,
)

KINDS = (MODELS, DEPLOYMENTS, RESERVATIONS, BUDGETS, FILE_BUCKETS, RELEASES)

DEFAULT_LINES = 200


async def read_log(call: Call, request: ReadDeploymentLogRequest) -> ReadDeploymentLogResponse:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or row.kind != DEPLOYMENT:
        raise contract.not_found("deployment", request.id)
    deployment = wire.resource_message(row)
    names = [replica.name for replica in deployment.status.replicas]
    name = request.replica or (names[0] if names else replica_name(0))
    if request.replica and request.replica not in names:
        there = ", ".join(names) or "none"
        raise contract.bad_field("replica", f'there is no replica "{request.replica}"; there are: {there}')
    backend = replica_backends(call.dependencies).of(deployment.spec)
    position = _position(request.after)
    if position is not None and position.replica == name:
        log = await backend.log_after(row.id, position)
    else:
        log = await backend.log(row.id, name, request.lines or DEFAULT_LINES)
    if log.end is None:
        return ReadDeploymentLogResponse(text=log.text)
    return ReadDeploymentLogResponse(
        text=log.text, next_position=str(log.end), run=f"{log.end.replica}/{log.end.run}"
    )


async def read_tokenizer(call: Call, request: ReadTokenizerRequest) -> ReadTokenizerResponse:
    row = await call.dependencies.store.read(lambda tx: tx.get(request.id))
    if row is None or row.kind != MODEL:
        raise contract.not_found("model", request.id)
    model = wire.message(row, Model)
    if model.spec.base_model_id:
        text = f"{row.name} is an adapter; read the tokenizer of its base {model.spec.base_model_id}."
        raise contract.bad_state(row.id, text)
    folders = call.dependencies.provided.get(ModelFolders)
    if row.state != ModelState.READY or not folders.reads_files:
        text = f"{row.name} is {row.state}, and has no files to read."
        raise contract.bad_state(row.id, text if folders.reads_files else f"{row.name} is simulated.")
    try:
        files = await asyncio.to_thread(read_tokenizer_files, folders.locate_known(model))
    except (WeightsGone, OSError) as error:
        raise contract.bad_state(row.id, f"The tokenizer of {row.name} cannot be read: {error}.") from error
    return ReadTokenizerResponse(files=[TokenizerFile(name=name, content=files[name]) for name in files])


def _position(text: str) -> LogPosition | None:
    position = LogPosition.of(text)
    if text and position is None:
        raise contract.bad_field("after", "is not a next_position of an answer")
    return position


async def wake(call: Call, request: WakeDeploymentRequest) -> Write[WakeDeploymentResponse]:
    """Start a sleeping deployment, as a request to it would."""
    now = call.dependencies.clock.now()

    def work(tx: Transaction) -> WakeDeploymentResponse:
        row = tx.get(request.id)
        if row is None or row.kind != DEPLOYMENT:
            raise contract.not_found("deployment", request.id)
        if row.deleted_at is not None:
            raise contract.bad_state(row.id, f"{row.id} is being deleted.")
        tx.enqueue(row.id, now)
        return WakeDeploymentResponse()

    board = call.dependencies.provided.get(TrafficBoard)
    return Write(work, after_commit=lambda: board.wake(request.id))


METHODS: tuple[AnyMethod, ...] = (
    Method(
        f"{_RELEASES}/Promote",
        promote,
        "inference.releases.promote",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{_RELEASES}/RollBack",
        roll_back,
        "inference.releases.rollBack",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        "neocloud.inference.v1.ModelService/ReadTokenizer",
        read_tokenizer,
        "inference.models.get",
        target=lambda request: request.id,
    ),
    Method(
        "neocloud.inference.v1.ModelService/OverrideGate",
        override_gate,
        "inference.gates.override",
        target=lambda request: request.id,
        is_change=True,
    ),
    Method(
        f"{_DEPLOYMENTS}/ReadLog",
        read_log,
        "inference.deployments.get",
        target=lambda request: request.id,
    ),
    Method(
        f"{_DEPLOYMENTS}/Wake",
        wake,
        "inference.deployments.invoke",
        target=lambda request: request.id,
        is_change=True,
    ),
    *gateway.METHODS,
)
"""Waking needs the permission to call a deployment, since a call wakes it too."""
