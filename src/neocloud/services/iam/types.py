"""The kinds, id prefixes and states of this service, the default groups, the tenant of a resource, and the
interfaces that other services may call, registered by type: `provided.get(TokenIssuer)`.

Tenant and Project are one message in the published API, `Container`: a row without a parent is a tenant, a
row with one is a project.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from neocloud.core.contract import ApiError, permission_denied
from neocloud.core.readers import ResourceReader, Subject
from neocloud.core.service import Authenticator
from neocloud.core.store.protocol import Page, Resource, Transaction
from neocloud.data_plane.access_keys import KeyLimit

CONTAINER = "nebius.iam.v1.Container"
SERVICE_ACCOUNT = "nebius.iam.v1.ServiceAccount"
AUTH_PUBLIC_KEY = "nebius.iam.v1.AuthPublicKey"
GROUP = "nebius.iam.v1.Group"
GROUP_MEMBERSHIP = "nebius.iam.v1.GroupMembership"
ACCESS_PERMIT = "nebius.iam.v1.AccessPermit"
ACCESS_KEY = "nebius.iam.v2.AccessKey"
STATIC_KEY = "nebius.iam.v1.StaticKey"
TENANT_USER_ACCOUNT = "nebius.iam.v1.TenantUserAccount"
INVITATION = "nebius.iam.v1.Invitation"
FEDERATED_CREDENTIALS = "nebius.iam.v1.FederatedCredentials"
SESSION = "neocloud.iam.v1.Session"
OIDC_FEDERATION = "neocloud.iam.v1.OidcFederation"


TENANT_ID_PREFIX = "tenant"
PROJECT_ID_PREFIX = "project"
SERVICE_ACCOUNT_ID_PREFIX = "serviceaccount"
AUTH_PUBLIC_KEY_ID_PREFIX = "publickey"
GROUP_ID_PREFIX = "group"
GROUP_MEMBERSHIP_ID_PREFIX = "groupmembership"
ACCESS_PERMIT_ID_PREFIX = "accesspermit"
ACCESS_KEY_ID_PREFIX = "accesskey"
STATIC_KEY_ID_PREFIX = "statickey"
TENANT_USER_ACCOUNT_ID_PREFIX = "tenantuseraccount"
INVITATION_ID_PREFIX = "invitation"
FEDERATED_CREDENTIALS_ID_PREFIX = "federatedcredentials"
SESSION_ID_PREFIX = "session"
OIDC_FEDERATION_ID_PREFIX = "oidcfederation"

DEFAULT_GROUPS = {"admins": "admin", "editors": "editor", "viewers": "viewer"}
"""The groups that every tenant starts with, and the role that each has on the whole tenant."""

CLOUDS_PROJECT_ID = "project-e00public-images"
"""The parent of resources that come with the cloud. It has no row and belongs to no tenant."""

SECRETS_ID = "iam"
"""The store keeps the secrets of this service itself under this id."""
SIGNING_KEY_SECRET = "access-token-signing-key"


class IamState(StrEnum):
    """The states of the resources of this service."""

    ACTIVE = "ACTIVE"
    INACTIVE = "INACTIVE"
    BLOCKED = "BLOCKED"
    """A user account that may not sign in."""
    PENDING = "PENDING"
    """An invitation that was not accepted."""
    ACCEPTED = "ACCEPTED"


def is_tenant(row: Resource) -> bool:
    return row.kind == CONTAINER and not row.parent_id


def operators_tenant_id(tx: Transaction) -> str:
    """Return the id of the operator's tenant: the first one, which exists before anybody can sign in."""
    tenants, _ = tx.list(CONTAINER, parent_id="", page=Page(1))
    return tenants[0].id if tenants else ""


def is_project(row: Resource) -> bool:
    return row.kind == CONTAINER and bool(row.parent_id)


def lineage(resource_id: str, get: Callable[[str], Resource | None]) -> Iterator[Resource]:
    """Yield the resource, its parent, its parent's parent and so on; nothing when it does not exist."""
    row = get(resource_id) if resource_id else None
    while row is not None:
        yield row
        row = get(row.parent_id) if row.parent_id else None


ACCESS_KINDS = frozenset(
    {
        *(ACCESS_KEY, SERVICE_ACCOUNT, GROUP, GROUP_MEMBERSHIP, ACCESS_PERMIT, CONTAINER),
        *(TENANT_USER_ACCOUNT, SESSION, AUTH_PUBLIC_KEY, FEDERATED_CREDENTIALS, OIDC_FEDERATION),
    }
)
"""The kinds that decide which signed requests are let in, and what they may do."""


def tenant_of(resource_id: str, get: Callable[[str], Resource | None]) -> str | None:
    """Return the id of the tenant that the resource belongs to, or None when it does not exist."""
    for row in lineage(resource_id, get):
        if is_tenant(row):
            return row.id
    return None


def require_operator(reader: ResourceReader, parent_id: str, permission: str) -> None:
    """Raise ApiError (permission denied) unless maintenance is announced in the operator's tenant."""
    tenants = reader.list(CONTAINER, "")
    if not tenants or parent_id != tenants[0].id:
        text = "Only an operator of this cloud can announce maintenance, in the operator's tenant."
        raise permission_denied(permission, parent_id, text)


class TokenIssuer(Protocol):
    """Issues access tokens for workloads that act as a service account, e.g. a machine."""

    async def __call__(self, service_account_id: str, lifetime: timedelta, /) -> tuple[str, datetime]:
        """Return an access token and when it ends; it becomes invalid when the account is deleted. Raises
        ApiError (not found) when there is no such account."""
        ...


class TokenAuthenticator(Authenticator, Protocol):
    """Authenticates tokens that a service received, and work that outlives its token."""

    async def proof_of(self, token: str) -> str:
        """Return the proof of a token: a text that names its account and credential."""
        ...

    async def proof_holds_until(self, token: str) -> datetime:
        """Return until when the proof of a valid token is valid only while the token is: its end, at most an
        hour from now."""
        ...

    async def authenticate_proof(self, proof: str) -> Subject:
        """Return the subject of a proof from `proof_of`. Raises ApiError once its credential was revoked."""
        ...


@dataclass(frozen=True)
class TemporaryKey:
    """A key for S3 of a signed-in account."""

    aws_access_key_id: str
    secret: str = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True)
class Signer:
    """The owner of the access key that signed requests of one day."""

    subject: Subject
    access_key_id: str
    signing_key: bytes = field(repr=False)
    """Derived from the secret for a day, a region and S3. It is worthless on any other day."""
    project_id: str
    group_ids: tuple[str, ...]
    expires_at: datetime | None
    limit: KeyLimit | None = None
    """None: all that the account may do."""


class SignedRequests(Protocol):
    """The interface for services whose callers sign with access keys or show tokens."""

    async def signer(self, aws_id: str, day: str, region: str) -> Signer | None:
        """Return the signer, by the access key id of a client, also of a temporary one; None unless the key
        is active."""
        ...

    async def rights(self, subject_id: str, permissions: Sequence[str], target_id: str) -> tuple[str, ...]:
        """Return those of the permissions that roles give an account on the target."""
        ...

    async def issue(self, token: str, project_id: str, lifetime: timedelta) -> TemporaryKey:
        """Return a key for the account of an access token. It ends with the credential of the token, and
        after `lifetime` at the latest. S3 creates and lists buckets in the project. Raises ApiError."""
        ...

    async def rights_of(
        self, subject: Subject, permissions: Sequence[str], target_id: str
    ) -> tuple[str, ...]:
        """Return those of the permissions that an authenticated subject has on the target."""
        ...

    async def token(self, aws_id: str) -> tuple[str, datetime] | None:
        """Return a token of the key's account for calls of the storage API, which ends with the key, and when
        it ends at the latest. None unless the key is active."""
        ...

    async def limited_key(
        self, account_id: str, project_id: str, limit: KeyLimit, lifetime: timedelta
    ) -> TemporaryKey:
        """Return a key for work that an account started and that outlives its sign-in. It may do what the
        account may do at the time of use, within the limit, and ends with the account."""
        ...

    def refusal(self, tx: Transaction, subject: Subject, permission: str, target_id: str) -> ApiError | None:
        """Return why the subject's roles do not allow this on the target; None where they do."""
        ...

    def account_has(self, tx: Transaction, account_id: str, permission: str, target_id: str) -> bool:
        """Return whether the roles of an account that may act now give it a permission on the target, for
        work of the control plane that it started and that outlives its sign-in."""
        ...

    def is_allowed(self, role: str, permission: str) -> bool: ...


class WorkloadKeys(Protocol):
    """Keys with which a workload acts as an account in object storage, where others may administer what it
    runs on: root of a Slurm cluster. Each stands on a grant, which is kept with the workload's resource and
    ends with it; a key whose grant was withdrawn is worthless."""

    def grant(self, tx: Transaction, resource_id: str, account_id: str) -> None:
        """Let a resource have keys of an account. An earlier grant stays as it is."""
        ...

    def withdraw(self, tx: Transaction, resource_id: str, account_id: str) -> None:
        """End the grant, and with it every key that stands on it."""
        ...

    def granted(self, tx: Transaction, resource_id: str) -> Mapping[str, str]:
        """Return the accounts that a resource may have keys of, by id: a text that tells one grant from
        another, and opens nothing."""
        ...

    def is_usable(self, tx: Transaction, account_id: str) -> bool:
        """Return whether the account may act now."""
        ...

    async def issue(self, resource_id: str, account_id: str, lifetime: timedelta) -> TemporaryKey | None:
        """Return a new key for the objects in the buckets of the resource's project; None without a grant.
        It has the rights that the account has at the time of use."""
        ...


@dataclass(frozen=True)
class ProjectRights:
    """The requested permissions that a subject has in one project."""

    project_id: str
    project_name: str
    permissions: tuple[str, ...]


@dataclass(frozen=True)
class ReadablePlaces:
    """The places where a subject holds a permission to read."""

    roots: frozenset[str] = frozenset()
    """These resources and everything in them."""
    ids: frozenset[str] = frozenset()
    """These resources alone."""
    parents: frozenset[str] = frozenset()
    """The resources directly in these."""


class ReadRights(Protocol):
    def __call__(
        self, tx: Transaction, subject: Subject, permissions: Collection[str], /
    ) -> Mapping[str, ReadablePlaces]:
        """Return where the subject holds each of the permissions, which end in `.get` or `.list`. A resource
        lies in one of the places if and only if the authorizer lets the subject read it."""
        ...


class TenantRights(Protocol):
    async def __call__(self, subject: Subject, permissions: Sequence[str], /) -> Sequence[ProjectRights]:
        """Return every project of the subject's tenant where it has any of the permissions, by id."""
        ...


@dataclass(frozen=True)
class Member:
    """A person in a group."""

    account_id: str
    name: str
    """An e-mail address, or what a provider calls the person. Its owner may have chosen it."""
    ssh_public_keys: tuple[str, ...] = ()


class GroupMembers(Protocol):
    async def __call__(self, project_id: str, group_ids: Sequence[str], /) -> Sequence[Member]:
        """Return the user accounts that may act now and are in one of these groups, oldest first. A group
        that is not of the project's tenant has no members."""
        ...
