"""Holdings of a tenant: one resource of every kind that is served, as rows, so that new kinds are there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from neocloud.core import contract
from neocloud.core.kind import Kind
from neocloud.core.store import Resource, Transaction
from neocloud.services.iam.rules.keys import aws_access_key_id
from neocloud.services.quotas.rules import allowance_id

CONTAINER = "nebius.iam.v1.Container"
IN_THE_TENANT = frozenset({"group", "federation", "oidcfederation", "tenantuseraccount", "invitation"})
"""Kinds whose container is a tenant, not a project."""


@dataclass(frozen=True)
class Holdings:
    """Ids by the type that they begin with, and the parent of each."""

    ids: Mapping[str, str]
    parents: Mapping[str, str]
    name: str
    static_token: str = ""
    operations: Mapping[str, str] = field(default_factory=dict)

    def of_kind(self, kind: Kind) -> str:
        return self.ids[kind.id_prefix]

    @property
    def aws_access_key_id(self) -> str:
        return aws_access_key_id(self.ids["accesskey"])

    def everything(self) -> set[str]:
        """Return the texts that an outsider must never see."""
        return {*self.ids.values(), *self.operations.values(), self.name, self.aws_access_key_id}

    def normal(self, text: str) -> str:
        """The text with each id replaced by its type."""
        named = {
            **self.ids,
            "aws": self.aws_access_key_id,
            "token": self.static_token,
            "operation": self.operation,
        }
        for prefix, identifier in named.items():
            text = text.replace(identifier, f"<{prefix}>") if identifier else text
        return text

    @property
    def operation(self) -> str:
        return next(iter(self.operations.values()), "")


def derived_ids(ids: Mapping[str, str]) -> dict[str, str]:
    """Return the ids of records without a row: every project has every quota."""
    return {"quotaallowance": allowance_id(ids["project"], "compute.instance.count")}


def nothing_like(held: Holdings) -> Holdings:
    """Ids of the same types that lead nowhere."""
    ids = {prefix: contract.new_id(prefix) for prefix in held.ids}
    ids |= derived_ids(ids)
    others = dict(zip(held.ids.values(), ids.values(), strict=True))
    return replace(
        held,
        ids=ids,
        parents={prefix: others[parent] for prefix, parent in held.parents.items()},
        static_token=held.static_token.replace(held.ids["statickey"], ids["statickey"]),
        operations={prefix: contract.new_id("operation") for prefix in held.operations},
    )


def in_order(kinds: Iterable[Kind]) -> Sequence[Kind]:
    """Parents before children."""
    waiting, ordered, known = list(kinds), [], {CONTAINER}
    while waiting:
        ready = [kind for kind in waiting if not kind.parent_kinds or known & {*kind.parent_kinds}]
        assert ready, f"No parent is served for {[kind.message for kind in waiting]}"
        for kind in ready:
            waiting.remove(kind)
            ordered.append(kind)
            known.add(kind.message)
    return ordered


def hold_one_of_each(
    tx: Transaction, kinds: Iterable[Kind], *, tenant_id: str, project_id: str, name: str
) -> Holdings:
    ids, parents = {"tenant": tenant_id, "project": project_id}, {"project": tenant_id}
    prefixes = {kind.message: kind.id_prefix for kind in kinds}
    now = datetime.now(UTC)
    for kind in in_order(kinds):
        if kind.message == CONTAINER:
            continue
        parent_kind = next(each for each in kind.parent_kinds if each == CONTAINER or prefixes[each] in ids)
        if parent_kind == CONTAINER:
            parent_id = tenant_id if kind.id_prefix in IN_THE_TENANT else project_id
        else:
            parent_id = ids[prefixes[parent_kind]]
        row = _row(kind, parent_id, name, ids, now)
        tx.insert(row)
        ids[kind.id_prefix], parents[kind.id_prefix] = row.id, parent_id
    derived = derived_ids(ids)
    return Holdings({**ids, **derived}, {**parents, **dict.fromkeys(derived, project_id)}, name)


def _row(kind: Kind, parent_id: str, name: str, ids: Mapping[str, str], now: datetime) -> Resource:
    resource = contract.message(kind.message)()
    resource.metadata.id = contract.new_id(kind.id_prefix)
    resource.metadata.parent_id = parent_id
    fields = resource.DESCRIPTOR.fields_by_name
    if "spec" in fields:
        name_others(resource.spec, ids)
    is_unnamed = "UNNAMED" in contract.resource_behaviors(resource.DESCRIPTOR)
    return Resource(
        id=resource.metadata.id,
        kind=kind.message,
        parent_id=parent_id,
        name="" if is_unnamed else name,
        created_at=now,
        updated_at=now,
        spec=resource.spec.SerializeToString() if "spec" in fields else b"",
        state=kind.initial_state,
        owner_id=kind.rules.owner_id(resource),
    )


def name_others(message: Any, ids: Mapping[str, str], depth: int = 3) -> None:
    """Fill in, in place, ids of what the holder has."""
    for field_ in message.DESCRIPTOR.fields:
        nid = contract.annotations(field_).nid
        held = next((ids[prefix] for prefix in nid.resources if prefix in ids), "") if nid else ""
        if field_.message_type is None and held and not field_.is_repeated:
            setattr(message, field_.name, held)
        elif field_.message_type is not None and field_.name == "account":
            message.account.service_account.id = ids["serviceaccount"]
