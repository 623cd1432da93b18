"""A deployment: how many replicas, a place for each, engines that answer, their adapters.

An engine that ended is restarted after a pause that grows; a deployment whose engines never answer is
ERROR with their own last words, and is tried again all the same.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

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
from neocloud.messages.neocloud.inference.v1 import Replica
from neocloud.services.inference.reconcile.adapters import lay, load_into, tidy
from neocloud.services.inference.reconcile.deployment_status import deployment_status
from neocloud.services.inference.reconcile.engine_client import (
    EngineClient,
    EngineRefused,
    EngineSilent,
)
from neocloud.services.inference.reconcile.failures import GIVE_UP_AFTER, explain, pause
from neocloud.services.inference.reconcile.placement import Placement, Seen
from neocloud.services.inference.reconcile.placements import placements
from neocloud.services.inference.reconcile.places import give_places_back, take_places
from neocloud.services.inference.reconcile.scope import Scope, read_scope
from neocloud.services.inference.resources import (
    DEPLOYMENT,
    ENGINE_KEY,
    MODULE_NAME,
    DeploymentReason,
    ModelFolders,
    ModelState,
    WeightsGone,
    embeds,
)
from neocloud.services.inference.rules.memory import Plan
from neocloud.services.inference.rules.scaling import Demand, quiet_time, wanted_replicas
from neocloud.services.inference.rules.shape import deployment_plan, shape_of
from neocloud.services.inference.traffic import TrafficBoard

LOG_LINES = 60


class DeploymentReconciler:
    kind = DEPLOYMENT
    status = staticmethod(deployment_status)

    def __init__(
        self,
        engine: Engine,
        placements: Mapping[bool, Placement],
        client: EngineClient,
        folders: ModelFolders,
        traffic: TrafficBoard | None,
        uses: CapacityUses,
    ) -> None:
        """`placements` by whether replicas are jobs of a Slurm cluster."""
        self._engine = engine
        self._placements = placements
        self._client = client
        self._folders = folders
        self._traffic = traffic
        self._uses = uses

    @classmethod
    def of(cls, dependencies: Dependencies) -> "DeploymentReconciler":
        return cls(
            dependencies.engine,
            placements(dependencies),
            dependencies.provided.get(EngineClient),
            dependencies.provided.get(ModelFolders),
            dependencies.provided.find(TrafficBoard),
            dependencies.provided.get(CapacityUses),
        )

    async def scope(self, context: Context) -> Scope:
        scope = await read_scope(context)
        scope.engine_key = await context.secret(ENGINE_KEY, lambda: secrets.token_urlsafe(32).encode())
        if not context.resource.deleted_at:
            scope.plan = await self._plan(scope)
        scope.seen = {seen.name: seen for seen in await self._placement(scope).look(scope)}
        return scope

    def steps(self, scope: Scope) -> Sequence[Step]:
        return (
            Step("Find the model", self._find_model),
            Step("Decide how many replicas", self._decide),
            Step("Find room", self._take_places),
            Step("Lay adapters", self._lay_adapters),
            Step("Note what ended", self._note_endings),
            Step("Start replicas", self._start),
            Step("Stop surplus replicas", self._stop_surplus),
            Step("Ask the engines", self._ask_engines),
            Step("Wait for a replica", self._wait),
        )

    def delete_steps(self, scope: Scope) -> Sequence[Step]:
        return (Step("Stop replicas", self._clear), Step("Delete its adapters", self._delete_adapters))

    def _placement(self, scope: Scope) -> Placement:
        return self._placements[bool(scope.spec.slurm_cluster_id)]

    async def _plan(self, scope: Scope) -> Plan | None:
        """How the replicas serve the model; None while there is no model to serve."""
        if scope.model is None or not scope.model.status.size_bytes:
            return None
        shape = shape_of(scope.spec, await self._engine.capabilities())
        if shape is None:  # a cluster decides; the engine takes what it finds there
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
        state = ModelState(
            contract.enum("neocloud.inference.v1.ModelStatus.State").Name(scope.model.status.state)
        )
        if state is not ModelState.READY:
            raise Failed(
                DeploymentReason.MODEL_NOT_READY,
                f"Its model {scope.model.metadata.name} is {state}, not READY.",
            )
        wrong = [name for name in scope.model.status.target_modules if not MODULE_NAME.fullmatch(name)]
        if wrong:  # it was looked at by an older release
            raise Failed(
                DeploymentReason.MODEL_NOT_READY,
                f"Its model names a layer {wrong[0]!r}; only letters, digits and _ are taken.",
            )
        if not scope.plan.fits:
            raise Failed(
                DeploymentReason.ENGINE_OUT_OF_MEMORY,
                f"{scope.spec.preset} does not hold the model: {scope.plan.sentence}.",
            )

    async def _decide(self, scope: Scope) -> None:
        assert scope.plan is not None
        status = scope.deployment.status
        demand = Demand()
        if self._traffic is not None:
            demand = self._traffic.demand(scope.id, quiet_time(scope.spec.scaling, status.start_seconds))
        wanted = wanted_replicas(
            scope.spec.scaling,
            demand,
            scope.context.now,
            status.wanted_replicas,
            concurrency=scope.plan.max_concurrency,
            start_seconds=status.start_seconds,
        )
        scope.wanted, scope.look_again_seconds = wanted.replicas, wanted.look_again_seconds

    async def _take_places(self, scope: Scope) -> None:
        if not scope.spec.slurm_cluster_id:
            await take_places(scope, await self._engine.capabilities(), self._uses)

    async def _lay_adapters(self, scope: Scope) -> None:
        if not scope.spec.max_adapters or not self._client.reads_files:
            return
        wanted = {each.id: each.model for each in scope.adapters}
        try:
            await lay(self._folders, self._folders.of_deployment(scope.id), wanted)
        except (WeightsGone, OSError) as error:
            raise RetryLater(
                f"an adapter cannot be laid beside the model: {error}", delay_seconds=5.0
            ) from error

    async def _note_endings(self, scope: Scope) -> None:
        placement = self._placement(scope)
        for name, seen in scope.seen.items():
            if seen.has_ended and name in scope.wanted_names:
                await self._note_ending(scope, placement, seen)
        for name, record in scope.records.items():
            is_lost = record.HasField("started_at") and name not in scope.seen
            if is_lost and not record.HasField("next_try_at"):
                _restart(record, "it was gone and is restarted")

    async def _note_ending(self, scope: Scope, placement: Placement, seen: Seen) -> None:
        record = scope.record(seen.name)
        ending = explain(seen.message, await placement.log(scope.id, seen.name, LOG_LINES))
        record.failures = 0 if record.state == Replica.READY else record.failures + 1
        _restart(record, ending.text)
        record.next_try_at.FromDatetime(scope.context.now + pause(record.failures))
        await placement.stop(scope, [seen.name])
        scope.seen = {name: each for name, each in scope.seen.items() if name != seen.name}

    async def _start(self, scope: Scope) -> None:
        """What is missing at once; what runs by an older spec one after the other, while the rest answers."""
        due = []
        for name in scope.wanted_names:
            seen, record = scope.seen.get(name), scope.record(name)
            is_pausing = record.HasField("next_try_at") and _later(record) > scope.context.now
            if (
                seen is None
                and not is_pausing
                or seen is not None
                and not seen.is_running
                and not seen.has_ended
            ):
                due.append(name)
        outdated = [
            name for name in scope.wanted_names if name in scope.seen and scope.seen[name].is_outdated
        ]
        others_answer = all(seen.is_healthy for name, seen in scope.seen.items() if name not in outdated)
        due += [name for name in outdated[:1] if name not in due and others_answer]
        if not due:
            return
        for name in due:
            scope.record(name).ClearField("next_try_at")
        placement = self._placement(scope)
        await placement.start(scope, due)
        scope.seen = {seen.name: seen for seen in await placement.look(scope)}

    async def _stop_surplus(self, scope: Scope) -> None:
        surplus = [name for name in scope.seen if name not in scope.wanted_names]
        if surplus:
            await self._placement(scope).stop(scope, surplus)
            scope.seen = {name: seen for name, seen in scope.seen.items() if name in scope.wanted_names}
        for name in [name for name in scope.records if name not in scope.wanted_names]:
            del scope.records[name]
        if not scope.spec.slurm_cluster_id:
            await give_places_back(scope, scope.wanted_names)

    async def _ask_engines(self, scope: Scope) -> None:
        asked = [seen for seen in scope.seen.values() if seen.name in scope.wanted_names]
        await asyncio.gather(*(self._ask_engine(scope, seen) for seen in asked))
        if scope.spec.max_adapters:
            wanted = {each.id: self._folders.of_model(each.id) for each in scope.adapters}
            await tidy(self._folders.of_deployment(scope.id), wanted)

    async def _ask_engine(self, scope: Scope, seen: Seen) -> None:
        """An engine counts as READY from its first answer on; then its adapters are brought up to date."""
        record = scope.record(seen.name)
        is_new = not record.HasField("started_at") or seen.started_at != contract.to_datetime(
            record.started_at
        )
        was_ready = record.state in (Replica.READY, Replica.UNHEALTHY) and not is_new
        _describe(record, seen, is_new=is_new)
        if not seen.is_running:
            record.state = Replica.PENDING
            return
        if not seen.is_healthy or not seen.address:
            record.state = Replica.UNHEALTHY if was_ready else Replica.LOADING
            return
        try:
            if not was_ready:
                key = scope.engine_key.decode()
                await self._client.warm_up(seen.address, key, scope.served_name, embeds=embeds(scope.spec))
            await self._update_adapters(scope, seen.address, record)
        except EngineSilent:
            record.state = Replica.UNHEALTHY if was_ready else Replica.LOADING
            return
        except EngineRefused as error:
            record.state, record.message = Replica.LOADING, f"its first answer failed: {error}"
            return
        record.state, record.failures = Replica.READY, 0

    async def _update_adapters(self, scope: Scope, address: str, record: Any) -> None:
        if not scope.spec.max_adapters:
            return
        placement = self._placement(scope)
        paths = {each.name: placement.adapter_path(scope, each.id) for each in scope.adapters}
        if sorted(paths) == list(record.adapters) and record.state == Replica.READY:
            return
        loaded, refusal = await load_into(self._client, scope, address, paths)
        del record.adapters[:]
        record.adapters.extend(loaded)
        record.message = refusal

    async def _wait(self, scope: Scope) -> None:
        records = [scope.record(name) for name in scope.wanted_names]
        ready = [record for record in records if record.state == Replica.READY]
        if len(ready) == len(records):
            return
        if not ready:
            for record in records:
                if record.failures >= GIVE_UP_AFTER:
                    is_memory = explain("", record.message).is_memory
                    reason = (
                        DeploymentReason.ENGINE_OUT_OF_MEMORY if is_memory else DeploymentReason.ENGINE_FAILED
                    )
                    raise Failed(reason, _last_words(record, is_memory=is_memory))
        waiting = next(record for record in records if record.state != Replica.READY)
        text = f"{waiting.name} is {Replica.State.Name(waiting.state)}"
        tries = [_later(each) - scope.context.now for each in records if each.HasField("next_try_at")]
        delay = max(POLL_SECONDS, min(tries, default=timedelta(0)).total_seconds()) if tries else POLL_SECONDS
        raise RetryLater(
            f"{text}: {waiting.message}" if waiting.message else text, delay_seconds=min(delay, 10.0)
        )

    async def _clear(self, scope: Scope) -> None:
        await self._placement(scope).clear(scope)

    async def _delete_adapters(self, scope: Scope) -> None:
        folder = self._folders.of_deployment(scope.id)
        await tidy(folder, {})
        if folder.is_dir():
            folder.rmdir()


def _restart(record: Any, message: str) -> None:
    record.restarts += 1
    record.state, record.message, record.address = Replica.PENDING, message, ""
    record.ClearField("started_at")
    del record.adapters[:]


def _describe(record: Any, seen: Seen, *, is_new: bool) -> None:
    record.address, record.job_id = seen.address, seen.job_id
    if seen.is_running and seen.started_at is not None:
        if is_new:
            if record.HasField("started_at"):  # by its health probe
                record.restarts += 1
            del record.adapters[:]
        record.started_at.FromDatetime(seen.started_at)
    record.message = seen.message or record.message


def _later(record: Any) -> datetime:
    return contract.to_datetime(record.next_try_at)


def _last_words(record: Any, *, is_memory: bool) -> str:
    advice = (
        "Choose a larger preset, or a smaller context_length or max_concurrency."
        if is_memory
        else "Read its log with: neo deployment logs"
    )
    return f"{record.name} ended {record.failures} times before it answered: {record.message}. {advice}"
