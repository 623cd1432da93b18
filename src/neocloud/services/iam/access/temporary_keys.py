"""Keys for S3 that act as a signed-in account for a limited time.

Nothing of a key is stored. Its id holds, encrypted, whose it is, the credential that it was issued to, and
when it ends; its secret is derived from the id. Each use looks at the account and the credential again, so a
key ends with the session that was revoked or the key that was deactivated, whatever its time.

A limited key is for work that an account started and that outlives the sign-in. It has no credential, ends
with the account, and either reads one bucket below a prefix, writes there or deletes there, or pulls one
repository.

A key of a workload lies where others may read it, as on a Slurm cluster with an administrator of its own. It
is limited to the objects of one project, and stands on a grant, a secret of the workload's resource.
"""

import base64
import hmac
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from neocloud.core import contract
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Transaction
from neocloud.data_plane.access_keys import TEMPORARY_KEY_PREFIX, KeyLimit
from neocloud.services.iam.access.account_keys import ACCESS_KEY_SCOPES
from neocloud.services.iam.access.authentication import find_account, find_subject
from neocloud.services.iam.access.tokens import AccessClaims, Actor
from neocloud.services.iam.types import SECRETS_ID, TemporaryKey, is_project, tenant_of

LONGEST_LIFETIME = timedelta(days=7)
_ROOT = "temporary-key-root"
_ROOT_BYTES = 32
_ID = re.compile(rf"{TEMPORARY_KEY_PREFIX}[A-Za-z0-9_-]{{100,508}}")
_GRANTS = "storage-grants"
"""A secret of a workload's resource: by the id of the account, what its keys have to hold."""
_GRANT_BYTES = 16
_WORKLOADS_PARTS = 2
"""How many parts the limit of a workload's key has: its resource and the grant."""
_PREFIX_BYTES = 100
"""How much of a prefix an id holds, which has to stay short."""


@dataclass(frozen=True)
class FoundKey:
    """A key that may be used now."""

    subject: Subject
    claims: AccessClaims | None
    """None of a limited key, which has no credential to issue tokens for."""
    secret: str = field(repr=False)
    project_id: str
    expires_at: datetime
    limit: KeyLimit | None = None


def is_temporary(aws_access_key_id: str) -> bool:
    return aws_access_key_id.startswith(TEMPORARY_KEY_PREFIX)


def issue_key(tx: Transaction, claims: AccessClaims, project_id: str, expires_at: datetime) -> TemporaryKey:
    """Return a new key for the account of an access token, whose claims were checked.

    Raises ApiError for a token of less than the whole account, and for a project of another tenant.
    """
    found = find_subject(tx, claims)
    if found is None or found.subject.scopes is not None:
        raise contract.permission_denied(
            "", project_id, "The key of this call is for one service alone, and cannot get other keys."
        )
    project = tx.get(project_id)
    if project is None or not is_project(project) or project.parent_id != found.subject.tenant_id:
        raise contract.not_found("project", project_id)
    actor = [claims.actor.id, claims.actor.credential_id] if claims.actor else None
    content = [
        *(claims.subject_id, claims.credential_id, claims.issued_at.timestamp(), actor),
        *(project_id, int(expires_at.timestamp())),
    ]
    return _sealed(tx, content, expires_at)


def issue_limited_key(
    tx: Transaction, account_id: str, project_id: str, limit: KeyLimit, now: datetime, expires_at: datetime
) -> TemporaryKey:
    """Return a new key for work of an account, as long as the account may be used."""
    prefix = limit.prefix.encode()[:_PREFIX_BYTES].decode(errors="ignore")
    content = [
        *(account_id, "", now.timestamp(), None, project_id, int(expires_at.timestamp())),
        *(limit.bucket_id, prefix, limit.writes, limit.deletes),
    ]
    return _sealed(tx, content, expires_at)


def grants_of(tx: Transaction, resource_id: str) -> dict[str, str]:
    """Return the grants of a workload's resource, by account; none of one that is being deleted."""
    row = tx.get(resource_id)
    kept = tx.secret(resource_id, _GRANTS)
    return json.loads(kept) if kept and row is not None and row.deleted_at is None else {}


def put_grant(tx: Transaction, resource_id: str, account_id: str) -> None:
    grants = grants_of(tx, resource_id)
    if account_id not in grants:
        grants[account_id] = secrets.token_urlsafe(_GRANT_BYTES)
        tx.put_secret(resource_id, _GRANTS, json.dumps(grants).encode())


def withdraw_grant(tx: Transaction, resource_id: str, account_id: str) -> None:
    grants = grants_of(tx, resource_id)
    if grants.pop(account_id, None) is not None:
        tx.put_secret(resource_id, _GRANTS, json.dumps(grants).encode())


def issue_workload_key(
    tx: Transaction, resource_id: str, account_id: str, now: datetime, expires_at: datetime
) -> TemporaryKey | None:
    """Return a new key for a workload that acts as an account in its project; None without a grant."""
    row, grant = tx.get(resource_id), grants_of(tx, resource_id).get(account_id)
    if row is None or grant is None:
        return None
    content = [
        *(account_id, "", now.timestamp(), None, row.parent_id, int(expires_at.timestamp())),
        *(resource_id, grant),
    ]
    return _sealed(tx, content, expires_at)


def _sealed(tx: Transaction, content: Sequence[object], expires_at: datetime) -> TemporaryKey:
    root = tx.secret(SECRETS_ID, _ROOT)
    if root is None:
        root = secrets.token_bytes(_ROOT_BYTES)
        tx.put_secret(SECRETS_ID, _ROOT, root)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    aws_id = TEMPORARY_KEY_PREFIX + _fernet(root).encrypt(text.encode()).decode().rstrip("=")
    return TemporaryKey(aws_id, _secret(root, aws_id), expires_at)


def find_key(tx: Transaction, aws_id: str, now: datetime) -> FoundKey | None:
    """Return the key that an S3 client names; None unless it was issued here and may be used now."""
    root = tx.secret(SECRETS_ID, _ROOT)
    if root is None or not _ID.fullmatch(aws_id):
        return None
    sealed = aws_id.removeprefix(TEMPORARY_KEY_PREFIX)
    try:
        opened = _fernet(root).decrypt(sealed + "=" * (-len(sealed) % 4))
    except InvalidToken:
        return None
    subject_id, credential_id, issued_at, actor, project_id, ends, *limit = json.loads(opened)
    issued, expires_at = (
        datetime.fromtimestamp(issued_at, now.tzinfo),
        datetime.fromtimestamp(ends, now.tzinfo),
    )
    if limit:
        account = find_account(tx, subject_id)
        found_limit = _limit_of(tx, subject_id, project_id, limit)
        if account is None or found_limit is None or now >= expires_at:
            return None
        if tenant_of(project_id, tx.get) != account.tenant_id:
            return None
        return FoundKey(account, None, _secret(root, aws_id), project_id, expires_at, found_limit)
    claims = AccessClaims(
        subject_id, credential_id, issued, expires_at, Actor(*actor) if actor else None, ACCESS_KEY_SCOPES
    )
    found = find_subject(tx, claims)
    if found is None or tenant_of(project_id, tx.get) != found.subject.tenant_id:
        return None
    expires_at = min(expires_at, found.ends_at or expires_at)
    if now >= expires_at:
        return None
    return FoundKey(found.subject, claims, _secret(root, aws_id), project_id, expires_at)


def _limit_of(tx: Transaction, account_id: str, project_id: str, limit: Sequence[Any]) -> KeyLimit | None:
    """Return the limit that a key names; None where it stands on a grant that is not there any more."""
    if len(limit) != _WORKLOADS_PARTS:
        return KeyLimit(*limit)
    resource_id, grant = limit
    known = grants_of(tx, resource_id).get(account_id, "")
    is_granted = hmac.compare_digest(known.encode(), str(grant).encode())
    return KeyLimit("", "", project_id=project_id) if known and is_granted else None


def _fernet(root: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.digest(root, b"id", "sha256")))


def _secret(root: bytes, aws_id: str) -> str:
    return (
        base64.urlsafe_b64encode(hmac.digest(root, f"secret {aws_id}".encode(), "sha256"))
        .decode()
        .rstrip("=")
    )
