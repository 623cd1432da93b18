"""Routes of requests: the route table, its updates from the control plane, and the choice of a replica.

The least loaded replica is chosen, or one slightly busier that has the prompt's start in its cache. A replica
that failed is paused, longer each time.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cachetools import LRUCache
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.osfiles import write_file
from neocloud.data_plane.control_plane_client import AwayLog
from neocloud.data_plane.long_poll import LongPoll
from neocloud.messages.neocloud.inference.v1 import (
    DeploymentSpec,
    DeploymentStatus,
    ListRoutesResponse,
    Route,
    RouteModel,
    TokenPrice,
)
from neocloud.model_gateway.control_plane import ControlPlane

logger = logging.getLogger(__name__)

GENERATE = "GENERATE"


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    address: str
    adapters: frozenset[str]
    """The names by which the model server knows its loaded adapters."""
    adapter_errors: Mapping[str, str] = field(default_factory=dict[str, str])
    """Why it could not load others, by the same names."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model name that clients call."""

    name: str
    served_name: str
    project_id: str
    """The project whose permission a caller needs."""
    parent_name: str
    license: str
    created_at: int
    is_adapter: bool
    deployment: "Deployment"

    @property
    def load_error(self) -> str:
        """Why no replica has loaded this adapter; "" where one has, or is still to try."""
        replicas = self.deployment.replicas
        errors = [replica.adapter_errors.get(self.served_name, "") for replica in replicas]
        is_loaded = any(self.served_name in replica.adapters for replica in replicas)
        return errors[0] if self.is_adapter and not is_loaded and errors and all(errors) else ""


@dataclass(frozen=True, slots=True)
class Deployment:
    id: str
    tenant_id: str
    state: str
    context_length: int
    """0: unknown."""
    server_key: str
    start_seconds: int
    replicas: tuple[Replica, ...]
    """Ready replicas."""
    price: Mapping[str, str] | None = None
    """Dollars per million tokens of "input", "cached_input" and "output"; None: no price."""
    is_billed_hourly: bool = False
    """Billed by the hour; tokens cost nothing."""
    must_prove: bool = False
    """Others may run programs at the addresses of its replicas: each proves first that it has the key."""
    task: str = GENERATE
    """The name of a DeploymentSpec.Task, which decides the paths that it serves."""
    hides_tools: bool = False
    """Its chat template leaves tools out: the model calls one only where a request demands it."""


class RouteTable:
    """The newest routes. `change` waits for the next ones."""

    def __init__(self) -> None:
        self.response = ListRoutesResponse()
        self.is_known = False
        """Whether the control plane has ever listed routes."""
        self._by_name: dict[tuple[str, str], Target] = {}
        self._deployments: tuple[Deployment, ...] = ()
        self._changed: asyncio.Event = asyncio.Event()

    @property
    def version(self) -> str:
        return self.response.version

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        return self._deployments

    def follow(self, response: ListRoutesResponse) -> None:
        deployments = [_deployment(route) for route in response.routes]
        self._by_name = {
            (deployment.tenant_id, model.name): _target(model, deployment)
            for route, deployment in zip(response.routes, deployments, strict=True)
            for model in route.models
        }
        self._deployments = tuple(deployments)
        self.response = response
        self.is_known = True
        self._changed.set()
        self._changed = asyncio.Event()

    def find(self, tenant_id: str, name: str) -> Target | None:
        return self._by_name.get((tenant_id, name))

    def of_tenant(self, tenant_id: str) -> list[Target]:
        return [target for (owner, _), target in self._by_name.items() if owner == tenant_id]

    async def change(self) -> None:
        """Wait for the next `follow`."""
        await self._changed.wait()

    def addresses(self) -> set[str]:
        return {replica.address for deployment in self._deployments for replica in deployment.replicas}


def _deployment(route: Route) -> Deployment:
    replicas = tuple(
        Replica(replica.name, replica.address, frozenset(replica.adapters), dict(replica.adapter_errors))
        for replica in route.replicas
        if replica.is_ready and replica.address
    )
    return Deployment(
        id=route.deployment_id,
        tenant_id=route.tenant_id,
        state=_value_name(DeploymentStatus.State, route.state),
        context_length=route.context_length,
        server_key=route.engine_key,
        must_prove=route.replicas_must_prove,
        start_seconds=route.start_seconds,
        replicas=replicas,
        price=_price(route.price),
        is_billed_hourly=_value_name(DeploymentSpec.Charge, route.charge) == "BY_HOUR",
        task=_value_name(DeploymentSpec.Task, route.task) or GENERATE,
        hides_tools=route.hides_tools,
    )


def _target(model: RouteModel, deployment: Deployment) -> Target:
    return Target(
        name=model.name,
        served_name=model.engine_name or model.name,
        project_id=model.project_id,
        parent_name=model.parent_name,
        license=model.license,
        created_at=model.created_at.seconds,
        is_adapter=bool(model.parent_name),
        deployment=deployment,
    )


def _price(message: TokenPrice) -> dict[str, str] | None:
    """Return the price; a part that is missing costs nothing, but cached input costs as much as other
    input."""
    if not (message.input or message.output):
        return None
    return {
        "input": message.input or "0",
        "cached_input": message.cached_input or message.input or "0",
        "output": message.output or "0",
    }


def _value_name(kind: EnumTypeWrapper, number: int) -> str:
    """Return the name of an enum value; "" for one of a newer control plane."""
    return kind.Name(number) if number in kind.values() else ""


def load_routes(path: Path) -> ListRoutesResponse | None:
    """Return the routes that an earlier gateway saved, or None."""
    try:
        return contract.from_json(ListRoutesResponse, path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, contract.ApiError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)
        return None


def save_routes(path: Path, response: ListRoutesResponse) -> None:
    """Write the routes, readable by the owner only: they hold keys of model servers."""
    write_file(path, contract.to_json(response))


WAIT_SECONDS = 30


class RouteWatcher:
    def __init__(
        self,
        control_plane: ControlPlane,
        table: RouteTable,
        file: Path,
        on_change: Callable[[ListRoutesResponse], None],
        clock: Clock,
    ) -> None:
        self._control_plane = control_plane
        self._table = table
        self._file = file
        self._on_change = on_change
        away = AwayLog(logger, "known models are still served")
        self.poll = LongPoll(clock, "Routes", self._list, self._apply, away=away)

    def load_from_disk(self) -> None:
        """Use the routes that an earlier gateway saved until the control plane responds."""
        response = load_routes(self._file)
        if response is not None:
            response.version = ""  # request the complete list
            self._take(response)

    async def _list(self) -> ListRoutesResponse:
        return await self._control_plane.list_routes(self._known_version(), WAIT_SECONDS)

    async def _apply(self, response: ListRoutesResponse) -> None:
        if response.version != self._known_version() or not self._table.is_known:
            self._take(response)
            await asyncio.to_thread(save_routes, self._file, response)

    def _known_version(self) -> str:
        return self._table.version if self._table.is_known else ""

    def _take(self, response: ListRoutesResponse) -> None:
        self._table.follow(response)
        self._on_change(response)


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
        self._prefix_replicas: LRUCache[int, str] = LRUCache(MAX_PREFIXES)
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
        self._prefix_replicas[key] = chosen.address
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
