"""User accounts as rows: create, delete, and find them by e-mail address or by identity at a provider.

Personal data (name, address) is stored encrypted, apart from the row, and deleted with it, because the
history of rows is kept. An e-mail address, and an identity at a provider, is reserved: no two accounts share
one.
"""

from collections.abc import Sequence
from datetime import datetime

from neocloud.core import contract
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import TenantUserAccountStatus, UserAccountStatus, UserAttributes
from neocloud.services.iam import types as iam

_ATTRIBUTES = "attributes"
_SSH_KEYS = "ssh-keys"
AccountState = TenantUserAccountStatus.State
UserState = UserAccountStatus.State


def attributes_of(tx: Transaction, account_id: str) -> UserAttributes:
    """Return the attributes of an account; empty ones when it has none."""
    return UserAttributes.FromString(tx.secret(account_id, _ATTRIBUTES) or b"")


def name_of(tx: Transaction, account: Resource) -> str:
    """Return the name of an account in the audit log. An address that the provider of its federation has not
    verified may belong to anybody, so the provider's own identifier is used instead."""
    attributes = attributes_of(tx, account.id)
    is_federated = bool(TenantUserAccountStatus.FromString(account.status).federation_id)
    return attributes.sub if is_federated and not attributes.email_verified else attributes.email


def put_attributes(tx: Transaction, account_id: str, attributes: UserAttributes) -> None:
    """Store attributes, without characters that control a terminal: outsiders choose the names."""
    for field, value in attributes.ListFields():
        if isinstance(value, str):
            setattr(attributes, field.name, printable(value))
    tx.put_secret(account_id, _ATTRIBUTES, attributes.SerializeToString())


def ssh_keys_of(tx: Transaction, account_id: str) -> list[str]:
    """Return the SSH public keys of an account, as they were added."""
    return (tx.secret(account_id, _SSH_KEYS) or b"").decode().splitlines()


def put_ssh_keys(tx: Transaction, account_id: str, keys: Sequence[str]) -> None:
    """Store keys of one line each. They are no secret, but a comment may name a person."""
    tx.put_secret(account_id, _SSH_KEYS, "\n".join(keys).encode())


def add_user(
    tx: Transaction,
    tenant_id: str,
    attributes: UserAttributes,
    now: datetime,
    *,
    federation_id: str = "",
    invitation_id: str = "",
) -> Resource:
    """Create an account. Raises ApiError (already exists) when its address or identity has one."""
    pending = bool(invitation_id)
    status = TenantUserAccountStatus(
        state=AccountState.Value(iam.IamState.INACTIVE if pending else iam.IamState.ACTIVE),
        user_account_state=UserState.Value(iam.IamState.INACTIVE if pending else iam.IamState.ACTIVE),
        federation_id=federation_id,
        invitation_id=invitation_id,
    )
    row = Resource(
        id=contract.new_id(iam.TENANT_USER_ACCOUNT_ID_PREFIX),
        kind=iam.TENANT_USER_ACCOUNT,
        parent_id=tenant_id,
        name="",
        created_at=now,
        updated_at=now,
        status=status.SerializeToString(),
        state=iam.IamState.INACTIVE if pending else iam.IamState.ACTIVE,
        owner_id=federation_id or invitation_id,
    )
    tx.insert(row)
    if federation_id:
        is_free = tx.reserve(_identity_namespace(federation_id, attributes.sub), "", row.id)
    else:
        is_free = tx.reserve(_address_namespace(attributes.email), tenant_id, row.id)
    if not is_free:
        raise contract.already_exists("user account", attributes.email or attributes.sub)
    put_attributes(tx, row.id, attributes)
    return row


def find_by_address(tx: Transaction, email: str, tenant: str = "") -> Resource | None:
    """Return the account that signs in with this address, in the tenant with this id or name.

    None also when several tenants have one and none of them is given, or several have the name.
    """
    holders = tx.reservations(_address_namespace(email))
    if tenant in holders:
        return tx.get(holders[tenant])
    if tenant:
        rows = {tenant_id: tx.get(tenant_id) for tenant_id in holders}
        holders = {each: holders[each] for each, row in rows.items() if row and row.name == tenant}
    return tx.get(next(iter(holders.values()))) if len(holders) == 1 else None


def find_by_identity(tx: Transaction, federation_id: str, sub: str) -> Resource | None:
    return tx.get(tx.reservations(_identity_namespace(federation_id, sub)).get("", ""))


def is_usable(tx: Transaction, account: Resource) -> bool:
    """Return whether an account may act now: it is neither pending nor blocked, and its federation, if
    any, is active."""
    if account.kind != iam.TENANT_USER_ACCOUNT or account.deleted_at or account.state != iam.IamState.ACTIVE:
        return False
    federation_id = TenantUserAccountStatus.FromString(account.status).federation_id
    if not federation_id:
        return True
    federation = tx.get(federation_id)
    return federation is not None and federation.state == iam.IamState.ACTIVE


def remove(tx: Transaction, resource_id: str) -> None:
    """Delete a resource with everything it owns: sessions and memberships. None of these has a reconciler."""
    for owned in tx.owned(resource_id):
        remove(tx, owned.id)
    tx.delete(resource_id)


def printable(text: str) -> str:
    return "".join(character for character in text if character.isprintable())


def normal_address(email: str) -> str:
    """Return an address in the form in which addresses are compared: without regard to case."""
    return email.strip().casefold()


def _address_namespace(email: str) -> str:
    return f"iam.address/{normal_address(email)}"


def _identity_namespace(federation_id: str, sub: str) -> str:
    return f"iam.identity/{federation_id}/{sub}"
