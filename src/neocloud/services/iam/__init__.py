"""Identity and access: tenants, projects, accounts, groups, permits, tokens, people and their sessions."""

from neocloud.core.kind import Kind
from neocloud.core.service import Dependencies, Service
from neocloud.services.iam import types as iam
from neocloud.services.iam.access.authentication import StoreAuthenticator
from neocloud.services.iam.access.authorization import StoreAuthorizer, read_rights, tenant_rights
from neocloud.services.iam.access.federation import Issuers
from neocloud.services.iam.access.group_members import group_members
from neocloud.services.iam.access.outgoing import Outgoing
from neocloud.services.iam.access.passwords import PasswordChecker
from neocloud.services.iam.access.signed_requests import StoreSignedRequests
from neocloud.services.iam.access.tokens import token_issuer
from neocloud.services.iam.access.workload_keys import StoreWorkloadKeys
from neocloud.services.iam.api import ALIASES, METHODS
from neocloud.services.iam.bootstrap import Bootstrap, bootstrap, make_rsa_key
from neocloud.services.iam.rules.accounts import (
    AccessPermitRules,
    GroupMembershipRules,
    GroupRules,
    ProjectRules,
    ServiceAccountRules,
    show_region,
    view_group,
    view_membership,
)
from neocloud.services.iam.rules.federations import FederatedCredentialsRules, OidcFederationRules
from neocloud.services.iam.rules.keys import AccessKeyRules, AuthPublicKeyRules, view_key, view_static_key
from neocloud.services.iam.rules.people import InvitationRules, show_expired
from neocloud.services.iam.types import (
    GroupMembers,
    ReadRights,
    SignedRequests,
    TenantRights,
    TokenAuthenticator,
    TokenIssuer,
    WorkloadKeys,
)

KINDS = (
    Kind(
        message=iam.CONTAINER,
        rpc="nebius.iam.v1.ProjectService",
        id_prefix=iam.PROJECT_ID_PREFIX,
        permission="iam.projects",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "GetByName", "List", "Update"}),
        rules=ProjectRules(),
        initial_state=iam.IamState.ACTIVE,
        view=show_region,
        method_overrides={"Delete": "nebius.iam.v2.ProjectService/Delete"},
    ),
    Kind(
        message=iam.SERVICE_ACCOUNT,
        rpc="nebius.iam.v1.ServiceAccountService",
        id_prefix=iam.SERVICE_ACCOUNT_ID_PREFIX,
        permission="iam.serviceAccounts",
        parent_kinds=(iam.CONTAINER,),
        rules=ServiceAccountRules(),
        # A caller who makes something act as an account can do what the account can.
        reference_verb="impersonate",
    ),
    Kind(
        message=iam.AUTH_PUBLIC_KEY,
        rpc="nebius.iam.v1.AuthPublicKeyService",
        id_prefix=iam.AUTH_PUBLIC_KEY_ID_PREFIX,
        permission="iam.authPublicKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "List", "Update", "Delete"}),
        rules=AuthPublicKeyRules(),
        initial_state=iam.IamState.ACTIVE,
        view=view_key,
    ),
    Kind(
        message=iam.GROUP,
        rpc="nebius.iam.v1.GroupService",
        id_prefix=iam.GROUP_ID_PREFIX,
        permission="iam.groups",
        parent_kinds=(iam.CONTAINER,),
        rules=GroupRules(),
        initial_state=iam.IamState.ACTIVE,
        view=view_group,
    ),
    Kind(
        message=iam.GROUP_MEMBERSHIP,
        rpc="nebius.iam.v1.GroupMembershipService",
        id_prefix=iam.GROUP_MEMBERSHIP_ID_PREFIX,
        permission="iam.groupMemberships",
        parent_kinds=(iam.GROUP,),
        verbs=frozenset({"Create", "Get", "Delete"}),
        rules=GroupMembershipRules(),
        view=view_membership,
    ),
    Kind(
        message=iam.ACCESS_PERMIT,
        rpc="nebius.iam.v1.AccessPermitService",
        id_prefix=iam.ACCESS_PERMIT_ID_PREFIX,
        permission="iam.accessPermits",
        parent_kinds=(iam.GROUP,),
        verbs=frozenset({"Create", "Get", "List", "Delete"}),
        rules=AccessPermitRules(),
    ),
    Kind(
        message=iam.ACCESS_KEY,
        rpc="nebius.iam.v2.AccessKeyService",
        id_prefix=iam.ACCESS_KEY_ID_PREFIX,
        permission="iam.accessKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Create", "Get", "List", "Update", "Delete"}),
        rules=AccessKeyRules(),
        initial_state=iam.IamState.ACTIVE,
        is_named_anyway=True,
        view=view_key,
    ),
    Kind(
        message=iam.STATIC_KEY,
        rpc="nebius.iam.v1.StaticKeyService",
        id_prefix=iam.STATIC_KEY_ID_PREFIX,
        permission="iam.staticKeys",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Get", "GetByName", "List", "Delete"}),
        view=view_static_key,
    ),
    Kind(
        message=iam.TENANT_USER_ACCOUNT,
        rpc="nebius.iam.v1.TenantUserAccountService",
        id_prefix=iam.TENANT_USER_ACCOUNT_ID_PREFIX,
        permission="iam.tenantUserAccounts",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Get", "List"}),
    ),
    Kind(
        message=iam.INVITATION,
        rpc="nebius.iam.v1.InvitationService",
        id_prefix=iam.INVITATION_ID_PREFIX,
        permission="iam.invitations",
        parent_kinds=(iam.CONTAINER,),
        verbs=frozenset({"Get", "List", "Update", "Delete"}),
        rules=InvitationRules(),
        view=show_expired,
    ),
    Kind(
        message=iam.OIDC_FEDERATION,
        rpc="neocloud.iam.v1.OidcFederationService",
        id_prefix=iam.OIDC_FEDERATION_ID_PREFIX,
        permission="iam.oidcFederations",
        parent_kinds=(iam.CONTAINER,),
        rules=OidcFederationRules(),
        initial_state=iam.IamState.ACTIVE,
    ),
    Kind(
        message=iam.FEDERATED_CREDENTIALS,
        rpc="nebius.iam.v1.FederatedCredentialsService",
        id_prefix=iam.FEDERATED_CREDENTIALS_ID_PREFIX,
        permission="iam.federatedCredentials",
        parent_kinds=(iam.CONTAINER,),
        rules=FederatedCredentialsRules(),
    ),
)
"""Verbs, permissions and rules of each resource that has standard verbs."""


def _issuers(dependencies: Dependencies) -> Issuers:
    """Return the client for other issuers. It calls them on the public internet, unless the settings allow
    private addresses and this machine."""
    settings = dependencies.settings
    hosts = frozenset(settings.issuer_hosts)
    return Issuers(dependencies.clock, Outgoing(allow_private=settings.allow_private_issuers, hosts=hosts))


SERVICE = Service(
    name="iam",
    kinds=KINDS,
    methods=METHODS,
    aliases=ALIASES,
    provides={
        PasswordChecker: lambda dependencies: PasswordChecker(),
        Issuers: _issuers,
        TokenIssuer: lambda dependencies: token_issuer(dependencies.store, dependencies.clock),
        TokenAuthenticator: lambda dependencies: StoreAuthenticator(dependencies.store, dependencies.clock),
        GroupMembers: lambda dependencies: group_members(dependencies.store),
        ReadRights: lambda dependencies: read_rights,
        TenantRights: lambda dependencies: tenant_rights(dependencies.store),
        SignedRequests: lambda dependencies: StoreSignedRequests(dependencies.store, dependencies.clock),
        WorkloadKeys: lambda dependencies: StoreWorkloadKeys(dependencies.store, dependencies.clock),
    },
)

__all__ = ["SERVICE", "Bootstrap", "StoreAuthenticator", "StoreAuthorizer", "bootstrap", "make_rsa_key"]
