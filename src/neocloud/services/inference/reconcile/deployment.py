"""Reconcile a deployment: the number of replicas, capacity for each, their model servers and adapters.

A replica whose model server ended is restarted after a growing pause. A deployment whose model servers never
answer is in ERROR with the cause from their logs, and is retried all the same.
"""

import asyncio
import secrets
from collections.abc import Sequence
from datetime import datetime

from neocloud.core import contract
from neocloud.core.capacity import CapacityUses
from neocloud.core.reconcile.reconciler import (
    POLL_SECONDS,
    Context,
    Failed,
    RetryLater,
    Step,
)
from neocloud.core.service import Dependencies
from neocloud.engines.base import Engine
from neocloud.messages.neocloud.inference.v1 import ModelStatus, Replica
from neocloud.services.inference.reconcile.backends import (
    ReplicaBackend,
    ReplicaBackends,
    replica_backends,
)
from neocloud.services.inference.reconcile.deployment_status import deployment_status
from neocloud.services.inference.reconcile.failures import GIVE_UP_AFTER, explain, pause
from neocloud.services.inference.reconcile.model_server import (
    ModelServerClient,
    ModelServerRefused,
    ModelServerUnreachable,
    sync_adapters,
)
from neocloud.services.inference.reconcile.reservations import release_replicas, reserve_replicas
from neocloud.services.inference.reconcile.scope import ReplicaStatus, Scope, read_scope
from neocloud.services.inference.reconcile.staging import prune_adapters, stage_adapters
from neocloud.services.inference.resources import (
    DEPLOYMENT,
    MODULE_NAME,
    SERVER_KEY,
    DeploymentReason,
    ModelFolders,
    ModelState,
    WeightsGone,
    embeds,
)
from neocloud.services.inference.rules.memory import Plan, deployment_plan, shape_of
from neocloud.services.inference.rules.scaling import Demand, desired_replicas, quiet_time
from neocloud.services.inference.traffic import TrafficBoard

LOG_LINES = 60
STAGING_RETRY_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 10.0


class DeploymentReconciler:
    kind = DEPLOYMENT
    status = staticmethod(deployment_status)

    def __init__(
        self,
        engine: Engine,
        backends: ReplicaBackends,
        client: ModelServerClient,
        folders: ModelFolders,
        traffic: TrafficBoard | None,
        uses: CapacityUses,
    ) -> None:
        self._engine = engine
        self._backends = backends
        self._client = client
        self._folders = folders
        self._traffic = traffic
        self._uses = uses

    @classmethod
    def of(cls, dependencies: Dependencies) -> "DeploymentReconciler":
        return cls(
            dependencies.engine,
            replica_backends(dependencies),
            dependencies.provided.get(ModelServerClient),
            dependencies.provided.get(ModelFolders),
            dependencies.provided.find(TrafficBoard),
            dependencies.provided.get(CapacityUses),
        )

    async def scope(self, context: Context) -> Scope:
        scope = await read_scope(context)
        scope.server_key = await context.secret(SERVER_KEY, lambda: secrets.token_urlsafe(32).encode())
        if not context.resource.deleted_at:
            scope.plan = await self._plan(scope)
        await self._observe(scope)
        return scope

    def steps(self, scope: Scope) -> Sequence[Step]:
        return (
            Step("Find the model", self._find_model),
            Step("Scale", self._scale),
            Step("Reserve capacity", self._reserve_replicas),
            Step("Stage adapters", self._stage_adapters),
            Step("Record ended replicas", self._record_endings),
            Step("Start replicas", self._start),
            Step("Stop surplus replicas", self._stop_surplus),
            Step("Check the model servers", self._check_servers),
            Step("Wait for a replica", self._wait),
        )

    def delete_steps(self, scope: Scope) -> Sequence[Step]:
        return (Step("Stop replicas", self._clear), Step("Delete its adapters", self._delete_adapters))

    def _backend(self, scope: Scope) -> ReplicaBackend:
        return self._backends.of(scope.spec)

    async def _observe(self, scope: Scope) -> None:
        scope.observed = {each.name: each for each in await self._backend(scope).observe(scope)}

    async def _plan(self, scope: Scope) -> Plan | None:
        """Return how the replicas serve the model; None while there is no model to serve."""
        if scope.model is None or not scope.model.status.size_bytes:
            return None
        shape = shape_of(scope.spec, await self._engine.capabilities())
        if shape is None:  # the node that Slurm chooses decides
            context = scope.spec.context_length or scope.model.status.context_length
            return Plan(
                True, "as much as the cluster's node gives", context, scope.spec.max_concurrency or 16
            )
        return deployment_plan(scope.spec, scope.model.status, shape)

    async def _find_model(self, scope: Scope) -> None:
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
                DeploymentReason.ENGINE_OUT_OF_MEMORY,
                f"{scope.spec.preset} does not hold the model: {scope.plan.sentence}.",
            )

    async def _scale(self, scope: Scope) -> None:
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

    async def _reserve_replicas(self, scope: Scope) -> None:
        if not scope.spec.slurm_cluster_id:
            await reserve_replicas(scope, await self._engine.capabilities(), self._uses)

    async def _stage_adapters(self, scope: Scope) -> None:
        if not scope.spec.max_adapters or not self._client.reads_files:
            return
        adapters = {each.id: each.model for each in scope.adapters}
        try:
            await stage_adapters(self._folders, self._folders.of_deployment(scope.id), adapters)
        except (WeightsGone, OSError) as error:
            raise RetryLater(
                f"an adapter cannot be copied next to the model: {error}", delay_seconds=STAGING_RETRY_SECONDS
            ) from error

    async def _record_endings(self, scope: Scope) -> None:
        for name, replica in scope.observed.items():
            if replica.has_ended and name in scope.desired_names:
                await self._record_ending(scope, replica)
        for name, record in scope.records.items():
            is_lost = record.HasField("started_at") and name not in scope.observed
            if is_lost and not record.HasField("next_try_at"):
                _restart(record, "it was gone and is restarted")

    async def _record_ending(self, scope: Scope, replica: ReplicaStatus) -> None:
        backend, record = self._backend(scope), scope.record(replica.name)
        ending = explain(replica.message, await backend.log(scope.id, replica.name, LOG_LINES))
        record.failures = 0 if record.state == Replica.READY else record.failures + 1
        _restart(record, ending.text)
        record.next_try_at.FromDatetime(scope.context.now + pause(record.failures))
        await backend.stop(scope, [replica.name])
        scope.observed = {name: each for name, each in scope.observed.items() if name != replica.name}

    async def _start(self, scope: Scope) -> None:
        """Start what is missing together; replace outdated replicas one by one, while the others answer."""
        due = [name for name in scope.desired_names if _is_due(scope, name)]
        outdated = [
            name
            for name in scope.desired_names
            if name in scope.observed and scope.observed[name].is_outdated
        ]
        others_answer = all(each.is_healthy for name, each in scope.observed.items() if name not in outdated)
        due += [name for name in outdated[:1] if name not in due and others_answer]
        if not due:
            return
        for name in due:
            scope.record(name).ClearField("next_try_at")
        await self._backend(scope).start(scope, due)
        await self._observe(scope)

    async def _stop_surplus(self, scope: Scope) -> None:
        surplus = [name for name in scope.observed if name not in scope.desired_names]
        if surplus:
            await self._backend(scope).stop(scope, surplus)
            scope.observed = {name: each for name, each in scope.observed.items() if name not in surplus}
        for name in [name for name in scope.records if name not in scope.desired_names]:
            del scope.records[name]
        if not scope.spec.slurm_cluster_id:
            await release_replicas(scope, scope.desired_names)

    async def _check_servers(self, scope: Scope) -> None:
        replicas = [each for each in scope.observed.values() if each.name in scope.desired_names]
        await asyncio.gather(*(self._check_server(scope, replica) for replica in replicas))
        if scope.spec.max_adapters:
            keep = {each.id for each in scope.adapters}
            await prune_adapters(self._folders.of_deployment(scope.id), keep)

    async def _check_server(self, scope: Scope, replica: ReplicaStatus) -> None:
        """Set the replica's state. It is READY from its first answer on; then its adapters are updated."""
        record = scope.record(replica.name)
        is_new = not record.HasField("started_at") or replica.started_at != contract.to_datetime(
            record.started_at
        )
        was_ready = record.state in (Replica.READY, Replica.UNHEALTHY) and not is_new
        _describe(record, replica, is_new=is_new)
        if not replica.is_running:
            record.state = Replica.PENDING
            return
        if not replica.is_healthy or not replica.address:
            record.state = Replica.UNHEALTHY if was_ready else Replica.LOADING
            return
        try:
            if not was_ready:
                key = scope.server_key.decode()
                await self._client.warm_up(replica.address, key, scope.served_name, embeds=embeds(scope.spec))
            await self._update_adapters(scope, replica.address, record)
        except ModelServerUnreachable:
            record.state = Replica.UNHEALTHY if was_ready else Replica.LOADING
            return
        except ModelServerRefused as error:
            record.state, record.message = Replica.LOADING, f"its first answer failed: {error}"
            return
        record.state, record.failures = Replica.READY, 0

    async def _update_adapters(self, scope: Scope, address: str, record: Replica) -> None:
        if not scope.spec.max_adapters:
            return
        backend = self._backend(scope)
        paths = {each.name: backend.adapter_path(scope, each.id) for each in scope.adapters}
        if sorted(paths) == list(record.adapters) and record.state == Replica.READY:
            return
        key = scope.server_key.decode()
        loaded, refusal = await sync_adapters(self._client, address, key, scope.served_name, paths)
        del record.adapters[:]
        record.adapters.extend(loaded)
        record.message = refusal

    async def _wait(self, scope: Scope) -> None:
        records = [scope.record(name) for name in scope.desired_names]
        ready = [record for record in records if record.state == Replica.READY]
        if len(ready) == len(records):
            return
        if not ready:
            _check_failures(records)
        waiting = next(record for record in records if record.state != Replica.READY)
        text = f"{waiting.name} is {Replica.State.Name(waiting.state)}"
        tries = [_next_try(each) - scope.context.now for each in records if each.HasField("next_try_at")]
        delay = max(POLL_SECONDS, min(tries).total_seconds()) if tries else POLL_SECONDS
        raise RetryLater(
            f"{text}: {waiting.message}" if waiting.message else text,
            delay_seconds=min(delay, LONGEST_WAIT_SECONDS),
        )

    async def _clear(self, scope: Scope) -> None:
        await self._backend(scope).clear(scope)

    async def _delete_adapters(self, scope: Scope) -> None:
        folder = self._folders.of_deployment(scope.id)
        await prune_adapters(folder, ())
        if folder.is_dir():
            folder.rmdir()


def _is_due(scope: Scope, name: str) -> bool:
    """Return whether the replica must be started: it is missing and not pausing, or not running yet."""
    replica, record = scope.observed.get(name), scope.record(name)
    if replica is not None:
        return not replica.is_running and not replica.has_ended
    return not record.HasField("next_try_at") or _next_try(record) <= scope.context.now


def _restart(record: Replica, message: str) -> None:
    record.restarts += 1
    record.state, record.message, record.address = Replica.PENDING, message, ""
    record.ClearField("started_at")
    del record.adapters[:]


def _describe(record: Replica, replica: ReplicaStatus, *, is_new: bool) -> None:
    record.address, record.job_id = replica.address, replica.job_id
    if replica.is_running and replica.started_at is not None:
        if is_new:
            if record.HasField("started_at"):  # its liveness probe restarted it
                record.restarts += 1
            del record.adapters[:]
        record.started_at.FromDatetime(replica.started_at)
    record.message = replica.message or record.message


def _next_try(record: Replica) -> datetime:
    return contract.to_datetime(record.next_try_at)


def _check_failures(records: Sequence[Replica]) -> None:
    """Raise Failed when a replica has ended too often before it answered."""
    for record in records:
        if record.failures >= GIVE_UP_AFTER:
            is_memory = explain("", record.message).is_memory
            reason = DeploymentReason.ENGINE_OUT_OF_MEMORY if is_memory else DeploymentReason.ENGINE_FAILED
            raise Failed(reason, _failure_message(record, is_memory=is_memory))


def _failure_message(record: Replica, *, is_memory: bool) -> str:
    advice = (
        "Choose a larger preset, or a smaller context_length or max_concurrency."
        if is_memory
        else "Read its log with: neo deployment logs"
    )
    return f"{record.name} ended {record.failures} times before it answered: {record.message}. {advice}"
