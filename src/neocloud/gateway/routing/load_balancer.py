# pyright: strict
"""Choose the replica of a request: the least loaded, or one slightly busier that has the prefix in its cache.

A replica that failed is paused, longer each time.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

from neocloud.core.clock import Clock
from neocloud.gateway.routing.routes import Replica, Target

MAX_PREFIXES = 50_000
SLACK_REQUESTS = 4
SLACK_SHARE = 1.25
"""A replica with the prefix is preferred up to this share of the lowest load, plus a few requests."""
MIN_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 30.0


@dataclass(slots=True)
class _Load:
    in_flight: int = 0
    failures: int = 0
    """Consecutive failures."""
    paused_until: float = 0.0


class LoadBalancer:
    def __init__(self, clock: Clock) -> None:
        self._monotonic = clock.monotonic
        self._loads: dict[str, _Load] = {}
        self._prefix_replicas: OrderedDict[int, str] = OrderedDict()
        """Hash of deployment, model and prefix -> address of the replica that served it last."""
        self._turn = 0

    def choose(self, target: Target, prefix: str, tried: Collection[str]) -> Replica | None:
        """Return a replica, or None when every ready replica was tried."""
        replicas = [replica for replica in target.deployment.replicas if replica.address not in tried]
        if not replicas:
            return None
        if len(replicas) == 1:
            return replicas[0]
        replicas = self._with_adapter(target, self._available(replicas))
        key = hash((target.deployment.id, target.served_name, prefix))
        chosen = self._prefix_replica(key, replicas) or self._least_loaded(replicas)
        self._remember(key, chosen.address)
        return chosen

    def started(self, address: str) -> None:
        self._load(address).in_flight += 1

    def finished(self, address: str) -> None:
        load = self._load(address)
        load.in_flight = max(load.in_flight - 1, 0)

    def succeeded(self, address: str) -> None:
        load = self._load(address)
        load.failures = 0
        load.paused_until = 0.0

    def failed(self, address: str) -> None:
        load = self._load(address)
        rest = min(MIN_PAUSE_SECONDS * 2**load.failures, MAX_PAUSE_SECONDS)
        load.failures = min(load.failures + 1, 16)
        load.paused_until = self._monotonic() + rest

    def keep_only(self, addresses: set[str]) -> None:
        for address in self._loads.keys() - addresses:
            if not self._loads[address].in_flight:
                del self._loads[address]

    def in_flight(self, address: str) -> int:
        return self._load(address).in_flight

    def _load(self, address: str) -> _Load:
        load = self._loads.get(address)
        if load is None:
            load = self._loads[address] = _Load()
        return load

    def _available(self, replicas: list[Replica]) -> list[Replica]:
        """Return replicas that are not paused; if all are, the one whose pause ends first."""
        now = self._monotonic()
        working = [replica for replica in replicas if self._load(replica.address).paused_until <= now]
        return working or [min(replicas, key=lambda replica: self._load(replica.address).paused_until)]

    @staticmethod
    def _with_adapter(target: Target, replicas: list[Replica]) -> list[Replica]:
        """Return replicas that have loaded the adapter, or all: any may load it."""
        if not target.is_adapter:
            return replicas
        return [replica for replica in replicas if target.served_name in replica.adapters] or replicas

    def _prefix_replica(self, key: int, replicas: list[Replica]) -> Replica | None:
        address = self._prefix_replicas.get(key)
        home = next((replica for replica in replicas if replica.address == address), None)
        if home is None:
            return None
        least = min(self._load(replica.address).in_flight for replica in replicas)
        is_near = self._load(home.address).in_flight <= least * SLACK_SHARE + SLACK_REQUESTS
        return home if is_near else None

    def _least_loaded(self, replicas: list[Replica]) -> Replica:
        """Return the least loaded replica, in turn among equals."""
        self._turn += 1
        start = self._turn % len(replicas)
        return min(
            replicas[start:] + replicas[:start], key=lambda replica: self._load(replica.address).in_flight
        )

    def _remember(self, key: int, address: str) -> None:
        self._prefix_replicas[key] = address
        self._prefix_replicas.move_to_end(key)
        if len(self._prefix_replicas) > MAX_PREFIXES:
            self._prefix_replicas.popitem(last=False)
