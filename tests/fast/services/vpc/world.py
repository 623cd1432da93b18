"""A project in memory for tables of rules: what is created goes through the rules as on the server."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.contract import ApiError
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ServiceRegistry, Subject
from neocloud.core.store import Resource
from neocloud.core.store.protocol import Transaction
from neocloud.engines.base import Capabilities
from neocloud.services.vpc import rules
from neocloud.services.vpc import types as vpc

PROJECT = "project-e00bank"
NOW = datetime(2026, 11, 1, tzinfo=UTC)
RULES: Mapping[str, Rules] = {
    vpc.NETWORK: rules.NetworkRules(),
    vpc.SUBNET: rules.SubnetRules(),
    vpc.POOL: rules.PoolRules(),
    vpc.ALLOCATION: rules.AllocationRules(),
    vpc.ROUTE_TABLE: rules.RouteTableRules(),
    vpc.ROUTE: rules.RouteRules(),
    vpc.SECURITY_GROUP: rules.SecurityGroupRules(),
    vpc.SECURITY_RULE: rules.SecurityRuleRules(),
}


class Refused(Exception):
    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("; ".join(f"{each.field} {each.message}" for each in violations))


@dataclass
class PlainWorld:
    rows: dict[str, Resource] = field(default_factory=dict)
    claimed: dict[str, dict[str, str]] = field(default_factory=lambda: defaultdict(dict))
    inventory: Capabilities | None = None
    now: datetime = NOW
    subject: Subject | None = None
    provided: ServiceRegistry = field(default_factory=ServiceRegistry)
    made: int = 0

    def get(self, resource_id: str) -> Resource | None:
        return self.rows.get(resource_id)

    def find(self, kind: str, parent_id: str, name: str) -> Resource | None:
        return next((row for row in self.list(kind, parent_id) if row.name == name), None)

    def list(self, kind: str, parent_id: str | None = None) -> Sequence[Resource]:
        return [r for r in self.rows.values() if r.kind == kind and parent_id in (None, r.parent_id)]

    def owned(self, owner_id: str) -> Sequence[Resource]:
        return [row for row in self.rows.values() if row.owner_id == owner_id]

    def reservations(self, namespace: str) -> Mapping[str, str]:
        return dict(self.claimed[namespace])

    def reserve(self, namespace: str, value: str, resource_id: str) -> bool:
        return self.claimed[namespace].setdefault(value, resource_id) == resource_id

    def release(self, namespace: str, value: str) -> None:
        self.claimed[namespace].pop(value, None)

    def write(self, work: Callable[[Transaction], None]) -> None:
        raise NotImplementedError("there is no transaction")

    # What the server does with the rules.
    def create(self, kind: str, spec: Mapping[str, Any], *, parent_id: str = PROJECT, name: str = "") -> Any:
        """The new resource; Refused or ApiError where the rules say so."""
        self.made += 1
        message = contract.from_dict(contract.message(kind), {"spec": dict(spec)})
        message.metadata.id = f"{kind.rpartition('.')[2].lower()}-e00{self.made:04}"
        message.metadata.parent_id = parent_id
        message.metadata.name = name or f"n{self.made}"
        message.status.SetInParent()
        found = RULES[kind]
        found.defaults(message)
        if violations := list(found.violations(message, None, self)):
            raise Refused(violations)
        before = {namespace: dict(held) for namespace, held in self.claimed.items()}
        try:
            found.complete(message, None, self)
        except ApiError:
            self.claimed.clear()
            self.claimed.update(before)
            raise
        self._put(message, found.owner_id(message))
        for row in found.companions(message, self):
            self.rows[row.id] = row
        return message

    def update(self, message: Any, spec: Mapping[str, Any]) -> Any:
        new = type(message).FromString(message.SerializeToString())
        new.spec.CopyFrom(contract.from_dict(type(message.spec), dict(spec)))
        found = RULES[message.DESCRIPTOR.full_name]
        found.defaults(new)
        if violations := list(found.violations(new, message, self)):
            raise Refused(violations)
        found.complete(new, message, self)
        self._put(new, self.rows[new.metadata.id].owner_id)
        return new

    def delete(self, message: Any) -> None:
        RULES[message.DESCRIPTOR.full_name].check_delete(message, self)
        del self.rows[message.metadata.id]
        for held in self.claimed.values():
            for value in [value for value, holder in held.items() if holder == message.metadata.id]:
                del held[value]

    def one(self, kind: str) -> Any:
        [row] = self.list(kind)
        return wire.resource_message(row)

    def _put(self, message: Any, owner_id: str) -> None:
        row = Resource(
            id=message.metadata.id,
            kind=message.DESCRIPTOR.full_name,
            parent_id=message.metadata.parent_id,
            name=message.metadata.name,
            created_at=NOW,
            updated_at=NOW,
            spec=message.spec.SerializeToString(),
            status=message.status.SerializeToString(),
            owner_id=owner_id,
        )
        self.rows[row.id] = replace(row)

    # Short words for the tables.
    def pool(self, *cidrs: str, source: str = "", visibility: str = "PRIVATE", project: str = PROJECT) -> Any:
        spec = {"version": "IPV4", "visibility": visibility, "cidrs": [{"cidr": cidr} for cidr in cidrs]}
        return self.create(vpc.POOL, {**spec, "source_pool_id": source}, parent_id=project)

    def network(self, *pools: Any, project: str = PROJECT) -> Any:
        spec = (
            {"ipv4_private_pools": {"pools": [{"id": pool.metadata.id} for pool in pools]}} if pools else {}
        )
        return self.create(vpc.NETWORK, spec, parent_id=project)

    def subnet(self, network: Any, *cidrs: str, **more: Any) -> Any:
        spec: dict[str, Any] = {"network_id": network.metadata.id, **more}
        if cidrs:
            spec["ipv4_private_pools"] = {"pools": [{"cidrs": [{"cidr": cidr} for cidr in cidrs]}]}
        return self.create(vpc.SUBNET, spec, parent_id=network.metadata.parent_id)

    def address(self, subnet: Any, cidr: str = "") -> Any:
        spec = {"ipv4_private": {"subnet_id": subnet.metadata.id, "cidr": cidr}}
        return self.create(vpc.ALLOCATION, spec)


def cidrs_of(subnet: Any) -> list[str]:
    return list(subnet.status.ipv4_private_cidrs)


def address_of(allocation: Any) -> str:
    return allocation.status.details.allocated_cidr
