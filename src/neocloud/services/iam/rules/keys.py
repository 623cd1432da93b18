"""What is legal for the keys of service accounts, and what follows from the time: they expire."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from neocloud.core import contract, wire
from neocloud.core.kind import Rules, Violation
from neocloud.core.readers import ResourceReader
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v2 import SecretDeliveryMode as DeliveryMode
from neocloud.services.iam.resources import SERVICE_ACCOUNT, State
from neocloud.services.iam.rules.access_key_id import aws_access_key_id
from neocloud.services.iam.rules.privilege import refuse_mightier

EXPIRED = "EXPIRED"


class AccessKeyRules(Rules):
    """Keys for the S3 protocol."""

    def defaults(self, resource: Any) -> None:
        if not resource.status.state:
            resource.status.state = _states(resource)[State.ACTIVE].number
        resource.status.aws_access_key_id = aws_access_key_id(resource.metadata.id)

    def owner_id(self, resource: Any) -> str:
        return resource.spec.account.service_account.id

    def violations(self, new: Any, old: Any | None, world: ResourceReader) -> Iterable[Violation]:
        if old is not None:
            return
        if new.spec.secret_delivery_mode == DeliveryMode.Value("MYSTERY_BOX"):
            raise contract.ApiError(
                contract.Code.UNIMPLEMENTED,
                "This cloud has no MysteryBox. Set spec.secret_delivery_mode to EXPLICIT and fetch the secret"
                " with GetSecret.",
            )
        yield from account_problem(new, world.get)
        refuse_mightier("iam.accessKeys.create", self.owner_id(new), world)
        yield from expiry_violations(new, "expires_at", world.now)


def account_problem(key: Any, get: Callable[[str], Resource | None]) -> Iterable[Violation]:
    """A key lies in the project of its account: else who may make keys in one project could act as the
    accounts of another."""
    account_id = key.spec.account.service_account.id
    account = get(account_id) if account_id else None
    if account is None or account.kind != SERVICE_ACCOUNT or account.parent_id != key.metadata.parent_id:
        yield Violation(
            "spec.account.service_account.id", f'"{account_id}" is no service account of this project'
        )


def expiry_violations(new: Any, field: str, now: datetime) -> Iterable[Violation]:
    if is_expired(new.spec, now, field):
        yield Violation(f"spec.{field}", "lies in the past; give a later time, or none to keep it for good")


def is_expired(spec: Any, now: datetime, field: str = "expires_at") -> bool:
    return spec.HasField(field) and contract.to_datetime(getattr(spec, field)) <= now


def show_expiry(key: Any, now: datetime) -> None:
    """An expired key says so, in place; nothing has to be written when its time comes."""
    if is_expired(key.spec, now):
        key.status.state = _states(key)[EXPIRED].number


def view_key(key: Any, tx: Transaction, now: datetime) -> None:
    show_expiry(key, now)


def view_static_key(key: Any, tx: Transaction, now: datetime) -> None:
    if is_expired(key.spec, now, "expiresAt"):
        key.status.active = False


def set_state(row: Resource, state: State) -> bytes:
    """The key's status with another state."""
    return wire.with_state(row.kind, row.status, state)


def _states(key: Any) -> Any:
    return key.status.DESCRIPTOR.fields_by_name["state"].enum_type.values_by_name
