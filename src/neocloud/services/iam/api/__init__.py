"""The table of custom methods, and the permission that each needs."""

from collections.abc import Callable
from typing import Protocol

from neocloud.core.service import Handler, Method, RequestT
from neocloud.services.iam.api import (
    access_keys,
    containers,
    federations,
    groups,
    invitations,
    keys,
    profile,
    sign_in,
    ssh_keys,
    token_exchange,
    users,
)
from neocloud.services.iam.api.keys import by_id

_SIGN_IN = "neocloud.iam.v1.SignInService"
_USERS = "neocloud.iam.v1.UserService"
_FEDERATIONS = "neocloud.iam.v1.OidcFederationService"
_ACCOUNTS = "nebius.iam.v1.TenantUserAccountService"
_WITH_ATTRIBUTES = "nebius.iam.v1.TenantUserAccountWithAttributesService"


class _HasParent(Protocol):
    parent_id: str


def _parent_id(request: _HasParent) -> str:
    return request.parent_id


def _change(
    path: str,
    handler: Handler[RequestT],
    permission: str,
    target: Callable[[RequestT], str] = by_id,  # pyright: ignore[reportArgumentType]
) -> Method[RequestT]:
    return Method(path, handler, permission, target=target, is_change=True)


_PEOPLE_METHODS = (
    # The request itself holds the credential. These calls write their own audit events.
    Method(f"{_SIGN_IN}/WithPassword", sign_in.with_password, permission=None),
    Method(f"{_SIGN_IN}/Refresh", sign_in.refresh, permission=None),
    Method(f"{_SIGN_IN}/SignOut", sign_in.sign_out, permission=None),
    Method(f"{_SIGN_IN}/StartOidc", federations.start, permission=None),
    Method(f"{_SIGN_IN}/FinishOidc", federations.finish, permission=None),
    Method(f"{_SIGN_IN}/AcceptInvitation", invitations.accept, permission=None),
    # By admins.
    _change(f"{_USERS}/Create", users.create, "iam.users.create", _parent_id),
    _change(f"{_USERS}/Delete", users.delete, "iam.users.delete"),
    _change(f"{_USERS}/SetPassword", users.set_password, "iam.users.update"),
    _change(f"{_USERS}/RemoveTotp", users.remove_totp, "iam.users.update"),
    _change(f"{_ACCOUNTS}/Block", users.block, "iam.users.update"),
    _change(f"{_ACCOUNTS}/Unblock", users.unblock, "iam.users.update"),
    _change(
        "nebius.iam.v1.InvitationService/Create",
        invitations.create,
        "iam.invitations.create",
        lambda request: request.metadata.parent_id,
    ),
    _change(f"{_USERS}/IssueInvitationCode", invitations.issue_code, "iam.invitations.update"),
    _change(f"{_FEDERATIONS}/SetClientSecret", federations.set_client_secret, "iam.oidcFederations.update"),
    _change(f"{_FEDERATIONS}/Activate", federations.activate, "iam.oidcFederations.update"),
    _change(f"{_FEDERATIONS}/Deactivate", federations.deactivate, "iam.oidcFederations.update"),
    Method(f"{_WITH_ATTRIBUTES}/Get", users.get_with_attributes, "iam.tenantUserAccounts.get", target=by_id),
    Method(
        f"{_WITH_ATTRIBUTES}/List",
        users.list_with_attributes,
        "iam.tenantUserAccounts.list",
        target=_parent_id,
    ),
    # By any signed-in subject, about itself. For other subjects, the handler checks the permission.
    Method(f"{_USERS}/ChangePassword", users.change_password, permission="", is_change=True),
    Method(f"{_USERS}/StartTotp", users.start_totp, permission="", is_change=True),
    Method(f"{_USERS}/ConfirmTotp", users.confirm_totp, permission="", is_change=True),
    Method("neocloud.iam.v1.SessionService/List", profile.list_sessions, permission=""),
    Method("neocloud.iam.v1.SessionService/Revoke", profile.revoke_one, permission="", is_change=True),
    Method("nebius.iam.v1.SessionManagementService/Revoke", profile.revoke, permission="", is_change=True),
)


METHODS = (
    # The subject token is the credential, so anybody may call.
    Method("nebius.iam.v1.TokenExchangeService/Exchange", token_exchange.exchange, permission=None),
    # Every signed-in subject, about itself.
    Method("nebius.iam.v1.ProfileService/Get", profile.get, permission=""),
    Method("nebius.iam.v1.TenantService/List", containers.list_tenants_v1, permission=""),
    Method(
        "nebius.iam.v1.TenantService/Get",
        containers.get_v1,
        "iam.tenants.get",
        target=lambda request: request.id,
    ),
    *containers.METHODS,
    *keys.METHODS,
    *access_keys.METHODS,
    *groups.METHODS,
    *ssh_keys.METHODS,
    *_PEOPLE_METHODS,
)

ALIASES = (*containers.ALIASES, *access_keys.ALIASES)
