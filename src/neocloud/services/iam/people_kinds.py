"""The nouns about people, and about others who vouch for them, that have standard verbs."""

from neocloud.core.kind import Kind
from neocloud.services.iam import resources as iam
from neocloud.services.iam.rules.federations import FederatedCredentialsRules, OidcFederationRules
from neocloud.services.iam.rules.invitations import InvitationRules, show_expired

PEOPLE_KINDS = (
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
        initial_state=iam.State.ACTIVE,
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
