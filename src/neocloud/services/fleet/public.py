"""Interfaces of the sources of verdicts on nodes, and of hosts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from neocloud.fleet.nodes.events import InventoryChanged, Verdict
from neocloud.fleet.nodes.gpu_use import GpuUse
from neocloud.services.slurm.public import Worker


class VerdictSource(Protocol):
    """A source of verdicts on the workers of clusters, such as the agent on each node.

    A source never waits: what takes time runs in the background, and its answers are given by a later call.
    No answer is UNKNOWN, and never a pass. Checks of a new source are in shadow until they have a record, or
    are named in `Limits.trusted`.
    """

    async def verdicts(self, cluster_id: str, workers: Sequence[Worker], now: float) -> Sequence[Verdict]:
        """Return the last answer of each check of each worker, also those that were given before: `node` is
        the worker's name, `boot` the start that was looked at, `at` when the check began. Earlier answers of
        the same check may come before it; each that differs from the one before is recorded."""
        ...

    def request(self, cluster_id: str, worker: str) -> None:
        """Look at this worker as soon as possible: its verification has begun."""
        ...

    def forget(self, cluster_id: str) -> None:
        """End what runs for a cluster that is not watched any more."""
        ...


@runtime_checkable
class RecordedSource(Protocol):
    """A source that keeps what it has given until it is in the log."""

    def recorded(self, cluster_id: str, workers: Sequence[str], shadow: Callable[[str], str]) -> None:
        """Confirm that the log has the last result of `verdicts` for these workers. `shadow` returns why a
        check may not act yet, or "".
        """
        ...


@runtime_checkable
class TimedSource(Protocol):
    """A source that asks something of workers from time to time, when it is called.

    It wakes the pool by itself when an answer says something new."""

    def due_in(self, cluster_id: str, workers: Sequence[Worker], now: float) -> float:
        """Return after how many seconds it is to be called again at the latest."""
        ...


@runtime_checkable
class InventorySource(Protocol):
    """A source that knows the parts of nodes, too."""

    def inventories(self, cluster_id: str, workers: Sequence[Worker]) -> Sequence[InventoryChanged]:
        """Return the parts of each of these workers as they were last read; those that are known already
        change nothing."""
        ...


@runtime_checkable
class GpuUseSource(Protocol):
    """A source that knows how much the GPUs of nodes are used, too."""

    def gpu_use(self, cluster_id: str, worker: str, now: float) -> tuple[Sequence[GpuUse], bool]:
        """Return what was read in the last minutes, and whether a part of it is not real."""
        ...


class VerdictSources(tuple[VerdictSource, ...]):
    """The sources that a verification needs an answer of, registered by this type."""


class BackgroundSources(tuple[VerdictSource, ...]):
    """Sources whose answers are recorded when there are some, and that no verification waits for."""


RACK_LABEL, LEAF_LABEL = "neocloud.dev/rack", "neocloud.dev/leaf-switch"


@dataclass(frozen=True)
class Host:
    """A machine that pods run on."""

    name: str
    boot: str
    """Names the start of its operating system."""
    started_at: float
    """Start of its operating system, in seconds since 1970."""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where it is, e.g. by `RACK_LABEL`."""


class HostsUnreachable(Exception):
    """The hosts, or the agent of one, did not answer, so nothing is known; the message says what."""


class HostNodes(Protocol):
    """The hosts of this cloud, each with an agent that the implementation keeps running."""

    async def look(self) -> Sequence[Host]:
        """Return all hosts. Raises HostsUnreachable."""
        ...

    async def ask(self, host: str, *, after: int, of: str, inventory: str, seconds: float) -> bytes:
        """Return what the agent of a host says, as `neocloud.fleet.agent.delivery` writes it: `after` names
        the last record that is kept, `of` its spool, `inventory` the list of parts that is known. Raises
        HostsUnreachable."""
        ...


class NoHosts:
    """Implements `HostNodes` where nobody watches hosts."""

    async def look(self) -> Sequence[Host]:
        return ()

    async def ask(self, host: str, *, after: int, of: str, inventory: str, seconds: float) -> bytes:
        raise HostsUnreachable(f"no host {host} is known")
