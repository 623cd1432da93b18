"""Reconcile a deployment: the number of replicas, capacity for each, their model servers and adapters.

The reconciler decides; `replicas.py` starts, stops and checks. A deployment whose model servers never answer
is in ERROR with the cause from their logs, and is still retried.
"""

import secrets
from collections.abc import Sequence

from neocloud.core import contract
from neocloud.core.reconcile.reconciler import (
    Context,
    Failed,
    ReconcileResult,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.core.usage import CapacityUses
from neocloud.engines.base import Engine
from neocloud.messages.neocloud.inference.v1 import DeploymentStatus, ModelStatus, Replica
from neocloud.services.compute.public import HOST_POOL, no_host, wait_for_capacity
from neocloud.services.inference.gateway_link import TrafficBoard
from neocloud.services.inference.public import ModelFolders, WeightsGone
from neocloud.services.inference.reconcile.backends import ReplicaBackends, replica_backends
from neocloud.services.inference.reconcile.model_server import ModelServerClient
from neocloud.services.inference.reconcile.quantized_weights import QuantizedWeights, require_quality
from neocloud.services.inference.reconcile.replicas import Replicas
from neocloud.services.inference.reconcile.scope import (
    DeploymentScope,
    read_scope,
    release_replicas,
    reserve_replicas,
)
from neocloud.services.inference.reconcile.staging import prune_adapters, stage_adapters
from neocloud.services.inference.rules.memory import MemoryPlan, deployment_plan, shape_of
from neocloud.services.inference.rules.scaling import (
    LONGEST_RESYNC_SECONDS,
    Demand,
    desired_replicas,
    quiet_time,
)
from neocloud.services.inference.types import (
    DEPLOYMENT,
    MODULE_NAME,
    SERVER_KEY,
    DeploymentReason,
    DeploymentState,
    ModelState,
    has_fewer_bits,
)

State = DeploymentStatus.State

STAGING_RETRY_SECONDS = 5.0


class DeploymentReconciler:
    kind = DEPLOYMENT

    def __init__(
        self,
        engine: Engine,
        backends: ReplicaBackends,
        client: ModelServerClient,
        folders: ModelFolders,
        traffic: TrafficBoard | None,
        uses: CapacityUses,
        quantized: QuantizedWeights,
    ) -> None:
        self._engine = engine
        self._replicas = Replicas(backends, client)
        self._stages_files = client.reads_files
        self._folders = folders
        self._traffic = traffic
        self._uses = uses
        self._quantized = quantized

    @classmethod
    def of(cls, dependencies: Dependencies) -> "DeploymentReconciler":
        folders = dependencies.provided.get(ModelFolders)
        return cls(
            dependencies.engine,
            replica_backends(dependencies),
            dependencies.provided.get(ModelServerClient),
            folders,
            dependencies.provided.find(TrafficBoard),
            dependencies.provided.get(CapacityUses),
            QuantizedWeights(dependencies.engine, folders, lambda: dependencies.settings.image("jail")),
        )

    async def scope(self, context: Context) -> DeploymentScope:
        scope = await read_scope(context)
        scope.server_key = await context.secret(SERVER_KEY, lambda: secrets.token_urlsafe(32).encode())
        if not context.resource.deleted_at:
            scope.plan = await self._plan(scope)
        await self._replicas.observe(scope)
        return scope

    def steps(self, scope: DeploymentScope) -> Sequence[Step[DeploymentScope]]:
        return (
            Step("Find the model", self._find_model),
            Step("Decide how many replicas", self._scale),
            Step("Check the quality of its weights", self._check_quality),
            Step("Reserve capacity", self._reserve_capacity),
            Step("Stage adapters", self._stage_adapters),
            Step("Record ended replicas", self._replicas.record_endings),
            Step("Wait for capacity", self._wait_for_capacity),
            Step("Make weights of fewer bits", self._make_weights),
            Step("Start replicas", self._replicas.start),
            Step("Stop surplus replicas", self._stop_surplus),
            Step("Check the model servers", self._check_model_servers),
            Step("Wait for a replica", self._replicas.wait),
        )

    def delete_steps(self, scope: DeploymentScope) -> Sequence[Step[DeploymentScope]]:
        return (
            Step("Stop replicas", self._replicas.clear),
            Step("Delete its weights", self._delete_weights),
            Step("Delete its adapters", self._delete_adapters),
        )

    def status(self, scope: DeploymentScope, result: ReconcileResult) -> ReconcileResult:
        old = scope.deployment.status
        state = _state(scope, result)
        status = DeploymentStatus(
            state=State.Value(state),
            message=result.message,
            reconciling=not result.is_done,
            wanted_replicas=scope.desired,
            start_seconds=old.start_seconds,
        )
        status.replicas.extend(scope.records[name] for name in sorted(scope.records, key=_by_number))
        if scope.plan is not None:
            status.memory = scope.plan.sentence
            status.context_length = scope.plan.context_length
            status.max_concurrency = scope.plan.max_concurrency
        if scope.model is not None:
            status.served_names.append(scope.served_name)
            status.served_names.extend(sorted(adapter.name for adapter in scope.adapters))
        if scope.quality is not None:
            status.weights_quality.CopyFrom(scope.quality)
        _record_start(status, scope, state)
        return result.with_status(status, state, scope.resync_seconds)

    async def _plan(self, scope: DeploymentScope) -> MemoryPlan | None:
        """Return how a replica serves the model; None while there is no model to serve."""
        if scope.model is None or not scope.model.status.size_bytes:
            return None
        shape = shape_of(scope.spec, await self._engine.capabilities())
        if shape is None:  # the node that Slurm chooses decides
            context = scope.spec.context_length or scope.model.status.context_length
            return MemoryPlan(
                True, "as much as the cluster's node gives", context, scope.spec.max_concurrency or 16
            )
        return deployment_plan(scope.spec, scope.model.status, shape)

    async def _find_model(self, scope: DeploymentScope) -> None:
        if scope.model is None or scope.plan is None or scope.context.resource.deleted_at:
            raise Failed(
                DeploymentReason.MODEL_NOT_READY, f"Its model {scope.spec.model_id} is gone or not READY."
            )
        state = ModelState(ModelStatus.State.Name(scope.model.status.state))
        if state is not ModelState.READY:
            raise Failed(
                DeploymentReason.MODEL_NOT_READY,
                f"Its model {scope.model.metadata.name} is {state}, not READY.",
            )
        wrong = [name for name in scope.model.status.target_modules if not MODULE_NAME.fullmatch(name)]
        if wrong:  # an older release inspected it
            raise Failed(
                DeploymentReason.MODEL_NOT_READY,
                f"Its model names a layer {wrong[0]!r}; only letters, digits and _ are accepted.",
            )
        if not scope.plan.fits:
            raise Failed(
                DeploymentReason.SERVER_OUT_OF_MEMORY,
                f"{scope.spec.preset} does not hold the model: {scope.plan.sentence}.",
            )

    async def _scale(self, scope: DeploymentScope) -> None:
        assert scope.plan is not None
        status = scope.deployment.status
        demand = Demand()
        if self._traffic is not None:
            demand = self._traffic.demand(scope.id, quiet_time(scope.spec.scaling, status.start_seconds))
        decision = desired_replicas(
            scope.spec.scaling,
            demand,
            scope.context.now,
            status.wanted_replicas,
            concurrency=scope.plan.max_concurrency,
            start_seconds=status.start_seconds,
        )
        scope.desired, scope.resync_seconds = decision.replicas, decision.resync_seconds
        if scope.spec.slurm_cluster_id:  # no event reports what happens to jobs
            scope.resync_seconds = min(scope.resync_seconds, LONGEST_RESYNC_SECONDS)

    async def _check_quality(self, scope: DeploymentScope) -> None:
        """Raise Failed where the weights are too bad, before capacity is reserved for them."""
        try:
            require_quality(scope)
        except Failed:
            scope.desired = 0
            await self._stop_surplus(scope)
            raise

    async def _make_weights(self, scope: DeploymentScope) -> None:
        if has_fewer_bits(scope.spec) and self._stages_files and scope.desired:
            await self._quantized.ensure(scope)
            await self._check_quality(scope)

    async def _delete_weights(self, scope: DeploymentScope) -> None:
        if has_fewer_bits(scope.spec):
            await self._quantized.remove(scope.id)

    async def _wait_for_capacity(self, scope: DeploymentScope) -> None:
        await wait_for_capacity(scope.context)
        if not scope.spec.slurm_cluster_id:
            scope.no_host = no_host(await scope.context.list(HOST_POOL))

    async def _reserve_capacity(self, scope: DeploymentScope) -> None:
        if not scope.spec.slurm_cluster_id:
            await reserve_replicas(scope, await self._engine.capabilities(), self._uses)

    async def _stage_adapters(self, scope: DeploymentScope) -> None:
        if not scope.spec.max_adapters or not self._stages_files:
            return
        adapters = {each.id: each.model for each in scope.adapters}
        try:
            await stage_adapters(self._folders, self._folders.of_deployment(scope.id), adapters)
        except (WeightsGone, OSError) as error:
            raise RetryLater(
                f"an adapter cannot be copied next to the model: {error}", delay_seconds=STAGING_RETRY_SECONDS
            ) from error

    async def _stop_surplus(self, scope: DeploymentScope) -> None:
        await self._replicas.stop_surplus(scope)
        if not scope.spec.slurm_cluster_id:
            await release_replicas(scope, scope.desired_names)

    async def _check_model_servers(self, scope: DeploymentScope) -> None:
        await self._replicas.check(scope)
        if scope.spec.max_adapters:
            keep = {each.id for each in scope.adapters}
            await prune_adapters(self._folders.of_deployment(scope.id), keep)

    async def _delete_adapters(self, scope: DeploymentScope) -> None:
        folder = self._folders.of_deployment(scope.id)
        await prune_adapters(folder, ())
        if folder.is_dir():
            folder.rmdir()


def _state(scope: DeploymentScope, result: ReconcileResult) -> DeploymentState:
    if scope.context.resource.deleted_at:
        return DeploymentState.DELETING
    if any(record.state == Replica.READY for record in scope.records.values()):
        return DeploymentState.READY
    if result.error:
        return DeploymentState.ERROR
    was = DeploymentState(State.Name(scope.deployment.status.state))
    if not scope.desired:
        return DeploymentState.ASLEEP if result.is_done else was
    is_first = was is DeploymentState.CREATING
    return DeploymentState.CREATING if is_first else DeploymentState.STARTING


def _record_start(status: DeploymentStatus, scope: DeploymentScope, state: DeploymentState) -> None:
    """Record how long a cold start takes: the wait that the gateway announces to callers of a cold model."""
    old, now = scope.deployment.status, scope.context.now
    if state is DeploymentState.READY:
        if old.state != status.state:
            took = now - (contract.to_datetime(old.starting_since) if old.HasField("starting_since") else now)
            status.start_seconds = max(1, round(took.total_seconds()))
    elif scope.desired and state is not DeploymentState.DELETING:
        is_going_on = old.HasField("starting_since") and state is not DeploymentState.ERROR
        begin = contract.to_datetime(old.starting_since) if is_going_on else now
        status.starting_since.FromDatetime(begin)


def _by_number(name: str) -> tuple[int, str]:
    """ "replica-10" comes after "replica-9"."""
    return (len(name), name)
