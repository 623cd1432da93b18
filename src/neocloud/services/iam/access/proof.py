"""Whether what an access token stands on is still there: the account, and the key or session that proves it.

Reads one consistent snapshot and nothing else. Who is impersonated exists only through an actor whose own
proof holds and who may still impersonate.
"""

from dataclasses import dataclass
from datetime import datetime

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.iam.v1 import AuthPublicKeySpec, FederatedCredentialsSpec
from neocloud.messages.neocloud.iam.v1 import SessionStatus
from neocloud.services.iam.access.authorize import refused
from neocloud.services.iam.access.tokens import AccessClaims
from neocloud.services.iam.access.users import is_usable, name_of
from neocloud.services.iam.resources import (
    AUTH_PUBLIC_KEY,
    FEDERATED_CREDENTIALS,
    SERVICE_ACCOUNT,
    SESSION,
    TENANT_USER_ACCOUNT,
    State,
    tenant_of,
)

IMPERSONATE = "iam.serviceAccounts.impersonate"
REVOKED_BEFORE = "tokens-revoked-before"
"""Secret of a service account: tokens that were issued until then are dead."""


@dataclass(frozen=True)
class Proven:
    """A subject, and when what proves it ends by itself."""

    subject: Subject
    ends_at: datetime | None = None


def find_subject(tx: Transaction, claims: AccessClaims) -> Proven | None:
    """Whom the claims stand for now, or None when they stand for nobody any more."""
    if claims.actor is None:
        return _proven(tx, claims.subject_id, claims.proof_id, claims.issued_at)
    actor = _proven(tx, claims.actor.id, claims.actor.proof_id, claims.issued_at)
    if actor is None or not may_impersonate(tx, actor.subject, claims.subject_id):
        return None
    account = _proven(tx, claims.subject_id, claims.subject_id, claims.issued_at)
    if account is None:
        return None
    seen = account.subject
    subject = Subject(seen.id, seen.kind, seen.name, seen.tenant_id, impersonator_id=actor.subject.id)
    return Proven(subject, actor.ends_at)


def may_impersonate(tx: Transaction, actor: Subject, account_id: str) -> bool:
    """Only service accounts of the actor's own tenant that hold no more than the actor, and only with the
    permission on them."""
    row = tx.get(account_id)
    return (
        row is not None
        and row.kind == SERVICE_ACCOUNT
        and refused(tx, actor, IMPERSONATE, account_id) is None
    )


def _proven(tx: Transaction, subject_id: str, proof_id: str, issued_at: datetime) -> Proven | None:
    account, proof = tx.get(subject_id), tx.get(proof_id)
    if account is None or proof is None or account.deleted_at or proof.deleted_at:
        return None
    if account.kind == SERVICE_ACCOUNT:
        holds, ends_at = _proves_service_account(account, proof)
        revoked = tx.secret(account.id, REVOKED_BEFORE)
        holds = holds and not (revoked and issued_at <= datetime.fromisoformat(revoked.decode()))
        kind, name = "service_account", account.name
    elif account.kind == TENANT_USER_ACCOUNT and is_usable(tx, account):
        holds, ends_at = _proves_user(account, proof)
        kind, name = "user", name_of(tx, account)
    else:
        return None
    tenant_id = tenant_of(account.id, tx.get)
    if not holds or tenant_id is None:
        return None
    return Proven(Subject(account.id, kind, name, tenant_id), ends_at)


def _proves_service_account(account: Resource, proof: Resource) -> tuple[bool, datetime | None]:
    if proof.kind == AUTH_PUBLIC_KEY:
        spec = AuthPublicKeySpec.FromString(proof.spec)
        ends_at = contract.to_datetime(spec.expires_at) if spec.HasField("expires_at") else None
        return proof.owner_id == account.id and proof.state == State.ACTIVE, ends_at
    if proof.kind == FEDERATED_CREDENTIALS:
        return FederatedCredentialsSpec.FromString(proof.spec).subject_id == account.id, None
    return proof.id == account.id, None


def _proves_user(account: Resource, proof: Resource) -> tuple[bool, datetime | None]:
    if proof.kind != SESSION or proof.parent_id != account.id:
        return False, None
    return True, contract.to_datetime(SessionStatus.FromString(proof.status).expires_at)
