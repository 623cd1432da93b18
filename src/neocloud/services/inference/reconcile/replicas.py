"""The replicas of a deployment: record why they ended, start and stop them, and check the model servers.

A replica that ended is started again after a pause that grows with each failed start. An outdated replica is
replaced while the others answer.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.reconcile.reconciler import POLL_SECONDS, Failed, RetryLater
from neocloud.messages.neocloud.inference.v1 import Replica
from neocloud.services.inference.reconcile.backends import ReplicaBackend, ReplicaBackends
from neocloud.services.inference.reconcile.model_server import (
    ModelServerClient,
    ModelServerRefused,
    ModelServerUnreachable,
    sync_adapters,
)
from neocloud.services.inference.reconcile.scope import DeploymentScope, ReplicaStatus
from neocloud.services.inference.types import DeploymentReason, task_name

LOG_LINES = 60
LONGEST_WAIT_SECONDS = 10.0
FIRST_PAUSE_SECONDS = 5
LONGEST_PAUSE_SECONDS = 300
LONGEST_ERROR = 500
"""Characters of a model server's reason that are kept."""
GIVE_UP_AFTER = 3
"""After this many failed starts in a row the deployment is in ERROR. Its replicas are still retried."""

_MEMORY = re.compile(
    r"out of memory|OutOfMemory|Cannot allocate memory|No available memory for the cache|"
    r"larger than the available KV cache|std::bad_alloc|Free memory on device",
    re.IGNORECASE,
)
_ERROR = re.compile(r"\b\w*(Error|Exception)\b: .+")
_VERBOSE = re.compile(r"^(\(\S+( pid=\d+)?\) )?(ERROR|INFO|WARNING) [\d-]+ [\d:]+ \[[^]]*\] ?")
_KILLED = re.compile(r"\b137\b")


class Replicas:
    """Steps of a run that act on replicas. They change `scope.records` and `scope.observed`."""

    def __init__(self, backends: ReplicaBackends, client: ModelServerClient) -> None:
        self._backends = backends
        self._client = client

    async def observe(self, scope: DeploymentScope) -> None:
        scope.observed = {each.name: each for each in await self._backend(scope).observe(scope)}

    async def record_endings(self, scope: DeploymentScope) -> None:
        """Record why replicas ended and when to start them again, and remove what is left of them."""
        for name, replica in scope.observed.items():
            if replica.has_ended and name in scope.desired_names:
                await self._record_ending(scope, replica)
        for name, record in scope.records.items():
            is_lost = record.HasField("started_at") and name not in scope.observed
            if is_lost and not record.HasField("next_try_at"):
                _restart(record, "it was gone and is restarted")

    async def start(self, scope: DeploymentScope) -> None:
        """Start all missing replicas, and replace one outdated replica if all others answer."""
        due = [name for name in scope.desired_names if _is_due(scope, name)]
        present = [name for name in scope.desired_names if name in scope.observed]
        outdated = [name for name in present if scope.observed[name].is_outdated]
        others_answer = all(each.is_healthy for name, each in scope.observed.items() if name not in outdated)
        due += [name for name in outdated[:1] if name not in due and others_answer]
        if scope.no_host:
            due = _of_those_that_run(scope, due)
        if not due:
            return
        for name in due:
            scope.record(name).ClearField("next_try_at")
        await self._backend(scope).start(scope, due)
        await self.observe(scope)

    async def stop_surplus(self, scope: DeploymentScope) -> None:
        surplus = [name for name in scope.observed if name not in scope.desired_names]
        if surplus:
            await self._backend(scope).stop(scope, surplus)
            scope.observed = {name: each for name, each in scope.observed.items() if name not in surplus}
        for name in [name for name in scope.records if name not in scope.desired_names]:
            del scope.records[name]

    async def check(self, scope: DeploymentScope) -> None:
        """Set the state of each replica, and update the adapters of those that answer."""
        replicas = [each for each in scope.observed.values() if each.name in scope.desired_names]
        await asyncio.gather(*(self._check(scope, replica) for replica in replicas))

    async def wait(self, scope: DeploymentScope) -> None:
        """Raise RetryLater unless all desired replicas are READY; Failed when none starts."""
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

    async def clear(self, scope: DeploymentScope) -> None:
        """Remove everything that the backend made for a deployment that is being deleted."""
        await self._backend(scope).clear(scope)

    def _backend(self, scope: DeploymentScope) -> ReplicaBackend:
        return self._backends.of(scope.spec)

    def _client_of(self, scope: DeploymentScope) -> ModelServerClient:
        """Others run programs on the nodes of a cluster; a pod's address is the pod's alone."""
        return self._client.proving() if scope.spec.slurm_cluster_id else self._client

    async def _record_ending(self, scope: DeploymentScope, replica: ReplicaStatus) -> None:
        backend, record = self._backend(scope), scope.record(replica.name)
        log = await backend.log(scope.id, replica.name, LOG_LINES)
        ending = explain(replica.message, log.text)
        record.failures = 0 if record.state == Replica.READY else record.failures + 1
        _restart(record, ending.text)
        record.next_try_at.FromDatetime(scope.context.now + pause(record.failures))
        await backend.stop(scope, [replica.name])
        scope.observed = {name: each for name, each in scope.observed.items() if name != replica.name}

    async def _check(self, scope: DeploymentScope, replica: ReplicaStatus) -> None:
        """Set the replica's state. It becomes READY with its first answer, after its adapters are loaded."""
        record = scope.record(replica.name)
        is_new = not record.HasField("started_at") or replica.started_at != _started_at(record)
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
                await self._client_of(scope).warm_up(
                    replica.address, key, scope.served_name, task=task_name(scope.spec)
                )
            await self._update_adapters(scope, replica.address, record)
        except ModelServerUnreachable:
            record.state = Replica.UNHEALTHY if was_ready else Replica.LOADING
            return
        except ModelServerRefused as error:
            record.state, record.message = Replica.LOADING, f"its first answer failed: {error}"
            return
        record.state, record.failures = Replica.READY, 0

    async def _update_adapters(self, scope: DeploymentScope, address: str, record: Replica) -> None:
        if not scope.spec.max_adapters:
            return
        backend = self._backend(scope)
        paths = {each.name: backend.adapter_path(scope, each.id) for each in scope.adapters}
        if sorted(paths) == list(record.adapters) and record.state == Replica.READY:
            return
        key = scope.server_key.decode()
        loaded, errors = await sync_adapters(self._client_of(scope), address, key, scope.served_name, paths)
        _set_adapters(record, loaded, errors)
        record.message = "; ".join(f"{name} was not loaded: {error}" for name, error in errors.items())


def _is_due(scope: DeploymentScope, name: str) -> bool:
    """Return whether the replica must be started: it is missing and not pausing, or not running yet."""
    replica, record = scope.observed.get(name), scope.record(name)
    if replica is not None:
        return not replica.is_running and not replica.has_ended
    return not record.HasField("next_try_at") or _next_try(record) <= scope.context.now


def _of_those_that_run(scope: DeploymentScope, due: Sequence[str]) -> list[str]:
    """Leave out what would be new on hosts that are drained: further replicas, and those of a newer spec. One
    that has run is restarted where it was."""
    kept: list[str] = []
    for name in due:
        replica, record = scope.observed.get(name), scope.record(name)
        if replica is None and not record.restarts:
            record.message = scope.no_host
        elif replica is None or not replica.is_outdated:
            kept.append(name)
    return kept


def _restart(record: Replica, message: str) -> None:
    record.restarts += 1
    record.state, record.message, record.address = Replica.PENDING, message, ""
    record.ClearField("started_at")
    _set_adapters(record, ())


def _describe(record: Replica, replica: ReplicaStatus, *, is_new: bool) -> None:
    record.address, record.job_id = replica.address, replica.job_id
    if replica.is_running and replica.started_at is not None:
        if is_new:
            if record.HasField("started_at"):  # its liveness probe restarted it
                record.restarts += 1
            _set_adapters(record, ())
        record.started_at.FromDatetime(replica.started_at)
    record.message = replica.message or record.message


def _set_adapters(record: Replica, names: Sequence[str], errors: Mapping[str, str] | None = None) -> None:
    del record.adapters[:]
    record.adapters.extend(names)
    record.adapter_errors.clear()
    for name, error in (errors or {}).items():
        record.adapter_errors[name] = error[:LONGEST_ERROR]


def _next_try(record: Replica) -> datetime:
    return contract.to_datetime(record.next_try_at)


def _started_at(record: Replica) -> datetime:
    return contract.to_datetime(record.started_at)


_EXIT = re.compile(r"\b(?:ended with|exit) code (\d{1,3})\b")


@dataclass(frozen=True)
class Ending:
    is_memory: bool
    text: str


def explain(message: str, log: str) -> Ending:
    """Return the cause, given the message of the backend and the last lines of the model server's log."""
    lines = [_VERBOSE.sub("", line).strip() for line in log.splitlines()]
    memory = next((line for line in reversed(lines) if _MEMORY.search(line)), "")
    errors = [
        line for line in lines if _ERROR.search(line) and "Engine core initialization failed" not in line
    ]
    cause = memory or (errors[-1] if errors else "") or next((line for line in reversed(lines) if line), "")
    was_killed = bool(_KILLED.search(message)) and not errors
    if not cause and was_killed:
        cause = "it was killed, as happens when it takes more memory than its limit"
    text = (cause or message or "it wrote no log")[:400]
    return Ending(bool(memory), f"the model server ended{_how(message)}: {text}")


def _how(message: str) -> str:
    """Return the exit code or signal in the message of a backend, in words; "" where it has none."""
    found = _EXIT.search(message)
    code = int(found[1]) if found else 0
    if not code:
        return ""
    return f" (signal {code - 128})" if 128 < code <= 128 + 64 else f" (exit code {code})"


def pause(failures: int) -> timedelta:
    """Return the pause before the next start: none after an answer, else 5 s, doubling up to 5 minutes."""
    if not failures:
        return timedelta(0)
    return timedelta(seconds=min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (failures - 1)))


def _check_failures(records: Iterable[Replica]) -> None:
    """Raise Failed when a replica has ended too often before it answered."""
    for record in records:
        if record.failures >= GIVE_UP_AFTER:
            is_memory = explain("", record.message).is_memory
            reason = DeploymentReason.SERVER_OUT_OF_MEMORY if is_memory else DeploymentReason.SERVER_FAILED
            raise Failed(reason, _failure_message(record, is_memory=is_memory))


def _failure_message(record: Replica, *, is_memory: bool) -> str:
    advice = (
        "Choose a larger preset, or a smaller context_length or max_concurrency."
        if is_memory
        else "Read its log with: neo deployment logs"
    )
    return f"{record.name} ended {record.failures} times before it answered: {record.message}. {advice}"
