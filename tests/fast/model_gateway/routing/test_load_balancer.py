"""Issue 4, gateway: least loaded with prefix affinity, adapters where they are, failing replicas left out."""

from neocloud.model_gateway.routing.routes import (
    MAX_PREFIXES,
    MIN_PAUSE_SECONDS,
    Deployment,
    LoadBalancer,
    Replica,
    Target,
)
from neocloud.testing.waiting import FakeClock


def target(*addresses: str, adapters: dict[str, list[str]] | None = None, adapter: str = "") -> Target:
    replicas = tuple(
        Replica(address, address, frozenset((adapters or {}).get(address, ()))) for address in addresses
    )
    deployment = Deployment("d", "t", "READY", 8192, "", 0, replicas)
    return Target("m", adapter or "m", "p", "m" if adapter else "", "", 0, bool(adapter), deployment)


def chosen(balancer: LoadBalancer, one: Target, prefix: str = "", tried: set[str] | None = None) -> str:
    replica = balancer.choose(one, prefix, tried or set())
    assert replica is not None
    return replica.address


def test_the_least_loaded_takes_it() -> None:
    balancer = LoadBalancer(FakeClock())
    for address in ("a", "a", "b"):
        balancer.started(address)
    assert {chosen(balancer, target("a", "b", "c"), str(n)) for n in range(9)} == {"c"}


def test_equals_take_turns() -> None:
    balancer = LoadBalancer(FakeClock())
    taken = [chosen(balancer, target("a", "b", "c"), str(n)) for n in range(30)]
    assert {taken.count(address) for address in "abc"} == {10}


def test_the_same_beginning_goes_to_the_same_replica_until_it_is_much_busier() -> None:
    balancer = LoadBalancer(FakeClock())
    home = chosen(balancer, target("a", "b"), "you are a bank")
    for _ in range(4):
        balancer.started(home)
        assert chosen(balancer, target("a", "b"), "you are a bank") == home
    balancer.started(home)
    assert chosen(balancer, target("a", "b"), "you are a bank") != home


def test_an_adapter_goes_where_it_is_loaded() -> None:
    one = target("a", "b", "c", adapters={"b": ["tuned"]}, adapter="tuned")
    balancer = LoadBalancer(FakeClock())
    assert {chosen(balancer, one, str(n)) for n in range(6)} == {"b"}
    assert chosen(balancer, one, "", {"b"}) in ("a", "c")


async def test_a_replica_that_fails_rests_longer_each_time() -> None:
    clock = FakeClock()
    balancer = LoadBalancer(clock)
    for failures in range(3):
        balancer.failed("a")
        await clock.advance(MIN_PAUSE_SECONDS * 2**failures - 0.01)
        assert {chosen(balancer, target("a", "b"), f"{failures} {n}") for n in range(4)} == {"b"}
        await clock.advance(0.02)
        assert "a" in {chosen(balancer, target("a", "b"), f"again {failures} {n}") for n in range(4)}
    balancer.succeeded("a")
    balancer.failed("a")
    await clock.advance(MIN_PAUSE_SECONDS + 0.01)
    assert "a" in {chosen(balancer, target("a", "b"), f"last {n}") for n in range(4)}


async def test_when_all_rest_the_first_to_return_is_asked() -> None:
    clock = FakeClock()
    balancer = LoadBalancer(clock)
    balancer.failed("a")
    await clock.advance(0.1)
    balancer.failed("b")
    assert chosen(balancer, target("a", "b")) == "a"


def test_no_replica_is_asked_twice() -> None:
    assert LoadBalancer(FakeClock()).choose(target("a", "b"), "", {"a", "b"}) is None


def test_what_it_remembers_is_bounded() -> None:
    balancer = LoadBalancer(FakeClock())
    for number in range(MAX_PREFIXES + 10):
        chosen(balancer, target("a", "b"), str(number))
    assert len(balancer._prefix_replicas) == MAX_PREFIXES
    balancer.failed("a")
    balancer.keep_only({"b"})
    assert set(balancer._loads) <= {"b"}
