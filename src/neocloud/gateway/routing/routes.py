# pyright: strict
"""The route table: deployments, their models and replicas, as the control plane last listed them."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neocloud.core import contract
from neocloud.core.osfiles import write_file

logger = logging.getLogger(__name__)

RESPONSE = "neocloud.inference.v1.ListRoutesResponse"


@dataclass(frozen=True, slots=True)
class Replica:
    name: str
    address: str
    adapters: frozenset[str]
    """The names by which the model server knows its loaded adapters."""


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
    embeds: bool = False
    """Serves /v1/embeddings only; other deployments serve everything else."""


class RouteTable:
    """The newest routes. `change` waits for the next ones."""

    def __init__(self) -> None:
        self.response: Any = contract.message(RESPONSE)()
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

    def follow(self, response: Any) -> None:
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


def _deployment(route: Any) -> Deployment:
    replicas = tuple(
        Replica(replica.name, replica.address, frozenset(replica.adapters))
        for replica in route.replicas
        if replica.is_ready and replica.address
    )
    return Deployment(
        id=route.deployment_id,
        tenant_id=route.tenant_id,
        state=_value_name(route, "state"),
        context_length=route.context_length,
        server_key=route.engine_key,
        start_seconds=route.start_seconds,
        replicas=replicas,
        price=_price(route.price),
        is_billed_hourly=_value_name(route, "charge") == "BY_HOUR",
        embeds=_value_name(route, "task") == "EMBED",
    )


def _target(model: Any, deployment: Deployment) -> Target:
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


def _price(message: Any) -> dict[str, str] | None:
    """Return the price; a part that is missing costs nothing, but cached input costs as much as other
    input."""
    if not (message.input or message.output):
        return None
    return {
        "input": message.input or "0",
        "cached_input": message.cached_input or message.input or "0",
        "output": message.output or "0",
    }


def _value_name(route: Any, field: str) -> str:
    values = route.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number
    value = values.get(getattr(route, field))
    return value.name if value else ""


def load_routes(path: Path) -> Any | None:
    """Return the routes that an earlier gateway saved, or None."""
    try:
        return contract.from_json(contract.message(RESPONSE), path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, contract.ApiError) as error:
        logger.warning("%s cannot be read and is ignored: %s", path, error)
        return None


def save_routes(path: Path, response: Any) -> None:
    """Write the routes, readable by the owner only: they hold keys of model servers."""
    write_file(path, contract.to_json(response))
