"""Access to a running cluster: its REST service, commands in its pods, and what its errors mean to the API.

Nothing is cached between calls: pods may move, so their addresses are looked up each time.
"""

from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from shlex import quote
from typing import Protocol

from neocloud.core import contract
from neocloud.core.service import Dependencies
from neocloud.core.store.protocol import Resource, Store
from neocloud.engines.base import MAX_OUTPUT_BYTES, Engine, ExecResult, Observation, Reference
from neocloud.services.slurm.render import CONTROLLER_PODS, ENTER_ROOT, LOGIN_POD
from neocloud.services.slurm.slurmrestd import SlurmApi, SlurmError, SlurmRest, SlurmUnreachable
from neocloud.services.slurm.types import (
    CLUSTER,
    USABLE_STATES,
    ClusterUnreachable,
    JobRefused,
    Secret,
    SubmissionUnknown,
    namespace,
)


class ClusterMissing(ClusterUnreachable):
    """No cluster has this id."""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(f"there is no cluster {cluster_id}")


class ClusterNotReady(ClusterUnreachable):
    """The cluster takes no jobs in its present state."""

    def __init__(self, name: str, state: str) -> None:
        super().__init__(f"cluster {name} is {state}, not READY")
        self.name = name
        self.state = state


class SlurmFactory(Protocol):
    def __call__(self, address: str, key: bytes, /) -> SlurmApi:
        """Open the REST service at an address with the cluster's JWT key."""
        ...


class SlurmAccess:
    """Opens connections to the clusters of one engine."""

    def __init__(self, engine: Engine, store: Store, factory: SlurmFactory = SlurmRest) -> None:
        self._engine = engine
        self._store = store
        self._factory = factory

    @classmethod
    def of(cls, dependencies: Dependencies) -> "SlurmAccess":
        factory = dependencies.provided.get(SlurmFactory)
        return cls(dependencies.engine, dependencies.store, factory)

    async def ready_cluster(self, cluster_id: str) -> Resource:
        """Return the row of a cluster that takes jobs. Raises ClusterMissing or ClusterNotReady."""
        row = await self._store.read(lambda tx: tx.get(cluster_id))
        if row is None or row.kind != CLUSTER:
            raise ClusterMissing(cluster_id)
        if row.state not in USABLE_STATES:
            raise ClusterNotReady(row.name, row.state)
        return row

    async def observe(self, cluster_id: str) -> Observation:
        return await self._engine.observe(namespace(cluster_id))

    @asynccontextmanager
    async def api(self, cluster_id: str, observation: Observation | None = None) -> AsyncGenerator[SlurmApi]:
        """Open the cluster's REST service, of two controllers that of the first that answers; `observation`
        saves reading its pods again.

        Raises SlurmUnreachable while no controller runs.
        """
        observation = observation or await self.observe(cluster_id)
        pods = (observation.pod(name) for name in CONTROLLER_PODS)
        addresses = [pod.ip for pod in pods if pod is not None and pod.ip]
        if not addresses:
            raise SlurmUnreachable("the controller does not run yet")
        key = await self._store.read(lambda tx: tx.secret(cluster_id, Secret.JWT_KEY))
        if key is None:
            raise SlurmUnreachable("the cluster has no keys yet")
        slurm = await self._first_that_answers(addresses, key)
        try:
            yield slurm
        finally:
            await slurm.close()

    async def _first_that_answers(self, addresses: Sequence[str], key: bytes) -> SlurmApi:
        """Return a client of the first controller that answers, or of the last."""
        *others, last = addresses
        for address in others:
            try:
                slurm = self._factory(address, key)
            except SlurmUnreachable:
                continue
            try:
                await slurm.version()
            except SlurmError:
                await slurm.close()
            else:
                return slurm
        return self._factory(last, key)

    @asynccontextmanager
    async def ready_api(
        self, cluster_id: str, observation: Observation | None = None
    ) -> AsyncGenerator[SlurmApi]:
        """Open the REST service of a cluster that takes jobs. Raises ClusterUnreachable, and JobRefused where
        Slurm refuses."""
        await self.ready_cluster(cluster_id)
        try:
            async with self.api(cluster_id, observation) as slurm:
                yield slurm
        except SlurmUnreachable as error:
            raise ClusterUnreachable(f"Slurm does not answer: {error}") from error
        except SlurmError as error:
            raise JobRefused(str(error)) from error

    async def run_in_login_shell(
        self,
        cluster_id: str,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 60.0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run on the first login node; see `run_in_shared_root`."""
        return await self.run_in_shared_root(
            cluster_id,
            LOGIN_POD,
            command,
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
        )

    async def run_in_shared_root(
        self,
        cluster_id: str,
        pod: str,
        command: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_seconds: float = 60.0,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
    ) -> ExecResult:
        """Run in a login or worker pod as the tenant's root, with the shared root as "/".

        The program is the tenant's. The image's `enter-root` first drops the container's capabilities, open
        files and environment, so nothing of a cluster may be executed any other way. Raises EngineError.
        """
        return await self._engine.exec(
            Reference("Pod", namespace(cluster_id), pod),
            [ENTER_ROOT, *command],
            stdin=stdin,
            timeout_seconds=timeout_seconds,
            max_output_bytes=max_output_bytes,
        )

    async def run_beside_daemons(self, cluster_id: str, pod: str, command: Sequence[str]) -> ExecResult:
        """Run a program of the image, with nothing of a tenant in its arguments. Raises EngineError."""
        return await self._engine.exec(
            Reference("Pod", namespace(cluster_id), pod), command, timeout_seconds=10.0, max_output_bytes=4096
        )


@contextmanager
def api_errors(cluster_id: str) -> Generator[None]:
    """Translate errors of `SlurmAccess` and `ClusterJobs` into errors of the API."""
    try:
        yield
    except ClusterMissing as error:
        raise contract.not_found("cluster", cluster_id) from error
    except ClusterNotReady as error:
        raise contract.bad_state(
            cluster_id,
            f'Cluster "{error.name}" is {error.state}, not READY. '
            f"See what it waits for with: neo slurm cluster get {quote(error.name)}",
        ) from error
    except SubmissionUnknown as error:
        text = (
            f"The job may have been submitted: {error} See `neo slurm job list` before you submit it again."
        )
        raise contract.ApiError(contract.Code.UNKNOWN, text) from error  # clients repeat UNAVAILABLE
    except ClusterUnreachable as error:
        text = str(error)
        raise contract.unavailable(f"{text[:1].upper()}{text[1:]}. Try again in a moment.") from error
    except JobRefused as error:
        raise contract.bad_state(cluster_id, f"Slurm refused: {error}") from error
