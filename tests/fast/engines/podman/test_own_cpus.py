"""CPUs that containers have for themselves; no Podman is asked."""

from collections.abc import Sequence

from neocloud.engines.manifest import Container, Pod
from neocloud.engines.manifest.container import limits
from neocloud.engines.podman.containers import Row
from neocloud.engines.podman.own_cpus import CpuAllocator


def worker(name: str, cpus: int, *, own_cpus: bool = True) -> Pod:
    container = Container(name="main", image="busybox", resources=limits(cpus=cpus, memory_mib=64))
    return Pod(name=name, namespace="lab", containers=(container,), own_cpus=own_cpus)


def container(cpus: str) -> Row:
    return Row(Id="0", State="running", Pid=1, StartedAt=1, ExitCode=0, Labels={"neocloud.cpus": cpus})


def listing(*rows: Row):
    async def list_rows() -> Sequence[Row]:
        return rows

    return list_rows


async def given(allocator: CpuAllocator, pod: Pod, *rows: Row) -> str:
    async with allocator.reserve(pod, listing(*rows)) as chosen:
        return chosen.get("main", "")


async def test_containers_get_cpus_that_no_other_has() -> None:
    allocator = CpuAllocator(range(8))
    assert await given(allocator, worker("a", 2)) == "0,1"
    assert await given(allocator, worker("b", 3), container("0,1"), container("")) == "2,3,4"
    assert await given(allocator, worker("c", 2), container("0,1"), container("4,5")) == "2,3"


async def test_cpus_that_must_be_shared_are_the_least_used() -> None:
    allocator = CpuAllocator([1, 4, 6])
    assert await given(allocator, worker("a", 2), container("1,4"), container("4,6")) == "1,6"
    assert await given(allocator, worker("b", 1), container("1,4"), container("1,6")) == "4"


async def test_pods_that_are_created_at_once_get_different_cpus() -> None:
    allocator = CpuAllocator(range(4))
    async with (
        allocator.reserve(worker("a", 2), listing()) as first,
        allocator.reserve(worker("b", 2), listing()) as second,
    ):
        assert (first["main"], second["main"]) == ("0,1", "2,3")
    assert await given(allocator, worker("c", 2)) == "0,1", "neither got containers"


async def test_a_pod_whose_containers_are_created_while_others_are_listed_keeps_its_cpus() -> None:
    allocator = CpuAllocator(range(4))
    first = allocator.reserve(worker("a", 2), listing())
    await first.__aenter__()

    async def list_rows_late() -> Sequence[Row]:
        await first.__aexit__(None, None, None)  # its containers are too new for this list
        return ()

    async with allocator.reserve(worker("b", 2), list_rows_late) as chosen:
        assert chosen["main"] == "2,3"


async def test_a_container_that_needs_as_many_as_there_are_has_all() -> None:
    allocator = CpuAllocator(range(2))
    assert await given(allocator, worker("a", 2)) == ""
    assert await given(allocator, worker("b", 4)) == ""
    assert await given(allocator, worker("c", 1, own_cpus=False)) == ""
    assert await given(CpuAllocator(()), worker("d", 1)) == "", "this machine has no cpusets"
