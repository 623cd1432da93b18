"""People by their e-mail addresses."""

from collections.abc import Iterator
from typing import Any

from neocloud.client.connection import Client
from neocloud.client.errors import ClientError

USERS = "nebius.iam.v1.TenantUserAccountWithAttributesService"


def user_id(client: Client, tenant_id: str, user: str) -> str:
    """Return the id for an address or id. Raises ClientError if none or several have the address."""
    if "@" not in user:
        return user
    found = [
        item.tenant_user_account.metadata.id
        for item in users(client, tenant_id)
        if item.attributes.email.casefold() == user.casefold()
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise ClientError(
            "FAILED_PRECONDITION", f"{user} has several accounts", f"Name one: {', '.join(found)}"
        )
    raise ClientError("NOT_FOUND", f"There is no user {user}", "`neo user list` lists the users")


def users(client: Client, tenant_id: str) -> Iterator[Any]:
    return client.list_all(f"{USERS}/List", {"parent_id": tenant_id})
