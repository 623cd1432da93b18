"""CPUs of this machine that a container has for itself, as cpusets.

A pod that asks for its own CPUs gets as many as its limits name, and sees no others. They are the least used
ones: nobody else's, unless more are promised than there are (`vcpu_per_core` of a platform). The labels of
the containers say who has which; there is no other record.
"""

import contextlib
import os
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path

from neocloud.engines.base import Reference
from neocloud.engines.manifest import Pod
from neocloud.engines.manifest.base import quantity
from neocloud.engines.podman.containers import Row
from neocloud.engines.podman.translate import CPUS_LABEL

Rows = Callable[[], Awaitable[Sequence[Row]]]
_CGROUPS = Path("/sys/fs/cgroup")


class CpuAllocator:
    """The CPUs of this machine, and the containers that have them."""

    def __init__(self, cpus: Collection[int] | None = None) -> None:
        """`cpus` are those that may be given; by default all that this process may use."""
        if cpus is None:
            cpus = os.sched_getaffinity(0) if _has_cpusets() else ()
        self._cpus = sorted(cpus)
        self._creating: dict[Reference, Mapping[str, str]] = {}

    @contextlib.asynccontextmanager
    async def reserve(self, pod: Pod, list_rows: Rows) -> AsyncGenerator[Mapping[str, str]]:
        """Yield the CPUs of the pod's containers, such as "0,1", by container name; none where a container
        has all. The containers are created meanwhile; `list_rows` returns those that exist.
        """
        counts = self._counts(pod)
        if not counts:
            yield {}
            return
        # Both before and after, as a pod whose containers are created meanwhile may not be among the rows.
        before = dict(self._creating)
        rows = await list_rows()
        given = [row["Labels"].get(CPUS_LABEL, "") for row in rows]
        for chosen in {**before, **self._creating}.values():
            given += chosen.values()
        used = Counter(number for each in given for number in _numbers(each))
        self._creating[pod.reference] = {name: self._take(count, used) for name, count in counts.items()}
        try:
            yield self._creating[pod.reference]
        finally:
            del self._creating[pod.reference]

    def _counts(self, pod: Pod) -> Mapping[str, int]:
        """Return how many CPUs each container gets for itself, of those that get some."""
        if not pod.own_cpus:
            return {}
        limits = {each.name: quantity(each.limits.get("cpu", "0"), "cpu") for each in pod.containers}
        return {
            name: int(cpus)
            for name, cpus in limits.items()
            if cpus == int(cpus) and 0 < cpus < len(self._cpus)
        }

    def _take(self, count: int, used: Counter[int]) -> str:
        chosen = sorted(sorted(self._cpus, key=lambda number: (used[number], number))[:count])
        used.update(chosen)
        return ",".join(map(str, chosen))


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in text.split(",") if number]


def _has_cpusets() -> bool:
    """Return whether this machine's control groups can hold processes to CPUs."""
    controllers = _CGROUPS / "cgroup.controllers"
    return (
        "cpuset" in controllers.read_text().split()
        if controllers.exists()
        else (_CGROUPS / "cpuset").is_dir()
    )
