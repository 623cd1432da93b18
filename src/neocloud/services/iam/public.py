"""Interfaces that other services may call, registered by type: `provided.get(TokenIssuer)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from neocloud.core.readers import Subject
from neocloud.core.service import Authenticator


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

    async def authenticate_proof(self, proof: str) -> Subject:
        """Return the subject of a proof from `proof_of`. Raises ApiError once its credential was revoked."""
        ...


@dataclass(frozen=True)
class ProjectRights:
    """The requested permissions that a subject has in one project."""

    project_id: str
    project_name: str
    permissions: tuple[str, ...]


class TenantRights(Protocol):
    async def __call__(self, subject: Subject, permissions: Sequence[str], /) -> Sequence[ProjectRights]:
        """Return every project of the subject's tenant where it has any of the permissions, by id."""
        ...
