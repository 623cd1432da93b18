"""Sessions as rows: opened by a sign-in, extended by refresh tokens, and closed permanently; and the audit
events of calls that need no token.

A refresh token is "<session id>.<random>". Only its hash is stored. Each works once: a refresh returns the
next one. When a used token is sent again, either the client or a thief has the newer one, so the session
ends. For some seconds the last token may be repeated, because an answer may have been lost.

The server knows no subject of a sign-in or its refusal, so the handler finds the subject and writes the
event, which holds no secrets.
"""

import hashlib
import hmac
import json
import re
import secrets
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta

from neocloud.core import contract, wire
from neocloud.core.readers import Subject
from neocloud.core.service import Call
from neocloud.core.store.audit_query import AuditEvent
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.neocloud.iam.v1 import Session, SessionSpec, SessionStatus
from neocloud.services.iam import types as iam
from neocloud.services.iam.access.users import is_usable, printable
from neocloud.services.iam.types import SECRETS_ID, lineage

IDLE_LIFETIME = timedelta(days=14)
"""A session that is not refreshed for this long ends."""
MAX_LIFETIME = timedelta(days=90)
"""A session ends after this long in any case."""
REPEAT_WITHIN = timedelta(seconds=20)
REMEMBERED = 20
"""Used tokens that are remembered. An unknown one is refused and does not end the session; otherwise anybody
who knows the id of a session could end it."""
MAX_SESSIONS = 50
"""The sessions of one user; one more ends the oldest."""
_REFRESH = "refresh-tokens"
SignInMethod = SessionSpec.Method


@dataclass
class _Tokens:
    """Hashes of the refresh tokens of one session."""

    current: str
    rotated_at: datetime
    repeatable: str = ""
    """The one that was exchanged for the current one."""
    used: list[str] = field(default_factory=list[str])
    """Newest first."""

    @classmethod
    def read(cls, tx: Transaction, session_id: str) -> "_Tokens":
        known = json.loads(tx.secret(session_id, _REFRESH) or b"{}")
        rotated_at = datetime.fromisoformat(known["rotated_at"])
        return cls(known["current"], rotated_at, known["repeatable"], known["used"])

    def write(self, tx: Transaction, session_id: str) -> None:
        known = asdict(self) | {"rotated_at": self.rotated_at.isoformat()}
        tx.put_secret(session_id, _REFRESH, json.dumps(known).encode())

    def rotate(self, given: str, following: str, now: datetime) -> bool:
        if hmac.compare_digest(given, self.current):
            self.repeatable, self.rotated_at = given, now
        elif not hmac.compare_digest(given, self.repeatable) or now >= self.rotated_at + REPEAT_WITHIN:
            return False
        self.used = [self.current, *self.used][:REMEMBERED]
        self.current = following
        return True


@dataclass(frozen=True)
class OpenSession:
    row: Resource
    account: Resource
    refresh_token: str
    expires_at: datetime


def open_session(tx: Transaction, account: Resource, method: str, client: str, now: datetime) -> OpenSession:
    for old in sessions_of(tx, account.id)[: -MAX_SESSIONS + 1]:
        tx.delete(old.id)
    session, expires_at = Session(), now + IDLE_LIFETIME
    session.spec.method = SignInMethod.Value(method)
    session.spec.client = printable(client)
    row = Resource(
        id=contract.new_id(iam.SESSION_ID_PREFIX),
        kind=iam.SESSION,
        parent_id=account.id,
        name="",
        created_at=now,
        updated_at=now,
        spec=session.spec.SerializeToString(),
        status=_status(now, expires_at),
        owner_id=account.id,
    )
    tx.insert(row)
    token = _new_token(row.id)
    _Tokens(_hash(token), now).write(tx, row.id)
    return OpenSession(row, account, token, expires_at)


def refresh(tx: Transaction, token: str, now: datetime) -> OpenSession | Resource | None:
    """Return the session with its next refresh token; None when the token is not valid. A replay ends the
    session and returns its account."""
    row = _row_of(tx, token)
    account = tx.get(row.parent_id) if row else None
    if row is None or account is None or not is_usable(tx, account):
        return None
    if now >= contract.to_datetime(SessionStatus.FromString(row.status).expires_at):
        tx.delete(row.id)
        return None
    tokens = _Tokens.read(tx, row.id)
    following = _new_token(row.id)
    if not tokens.rotate(_hash(token), _hash(following), now):
        if _hash(token) not in tokens.used:
            return None
        tx.delete(row.id)
        return account
    tokens.write(tx, row.id)
    expires_at = min(now + IDLE_LIFETIME, row.created_at + MAX_LIFETIME)
    row = replace(row, status=_status(now, expires_at), updated_at=now)
    tx.update(row)
    return OpenSession(row, account, following, expires_at)


def close(tx: Transaction, token: str) -> Resource | None:
    """End the session of a refresh token, used or not, and return the session's row."""
    row = _row_of(tx, token)
    if row is not None:
        tokens = _Tokens.read(tx, row.id)
        if _hash(token) not in (tokens.current, *tokens.used):
            return None
        tx.delete(row.id)
    return row


def close_all(tx: Transaction, account_id: str, *, except_id: str = "") -> int:
    """End all sessions of a user except one."""
    rows = [row for row in sessions_of(tx, account_id) if row.id != except_id]
    for row in rows:
        tx.delete(row.id)
    return len(rows)


def sessions_of(tx: Transaction, account_id: str) -> list[Resource]:
    """Return the sessions of an account, oldest first."""
    return list(tx.list(iam.SESSION, parent_id=account_id)[0])


def _row_of(tx: Transaction, token: str) -> Resource | None:
    row = tx.get(token.partition(".")[0])
    return row if row is not None and row.kind == iam.SESSION else None


def _new_token(session_id: str) -> str:
    return f"{session_id}.{secrets.token_urlsafe(32)}"


def _hash(token: str) -> str:
    """Hash a token. It is random, so it needs no slow hash."""
    return hashlib.sha256(token.encode()).hexdigest()


def _status(now: datetime, expires_at: datetime) -> bytes:
    return SessionStatus(last_refreshed_at=now, expires_at=expires_at).SerializeToString()


SOURCE = ":source"
"""The header in which the server passes the caller's address."""
_MAX_TEXT = 512


def write_event(
    tx: Transaction,
    call: Call,
    method: str,
    subject: Subject | None,
    resource_id: str,
    *,
    error: contract.ApiError | None = None,
) -> None:
    """Write an event of the subject's tenant, or of the resource's tenant when there is no subject. For a
    resource in another tenant, it has only the id."""
    rows = list(lineage(resource_id, tx.get))
    tenant_id = subject.tenant_id if subject else rows[-1].id if rows else ""
    if not rows or rows[-1].id != tenant_id:
        rows = []
    service, _, verb = method.partition("/")
    vendor, service_name, *_, name = service.split(".")
    action = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", verb).lower()
    hierarchy = [[row.id, row.name, wire.noun(row.kind, row.id)] for row in reversed(rows)]
    tx.audit(
        AuditEvent(
            id=contract.new_id("auditevent"),
            at=call.dependencies.clock.now(),
            subject=subject.id if subject else "",
            method=method,
            parent_id=rows[0].parent_id if rows else "",
            resource_id=resource_id,
            request_id=call.request_id,
            code=int(error.code if error else contract.Code.OK),
            message=error.message if error else "",
            tenant_id=tenant_id,
            hierarchy=json.dumps(hierarchy, ensure_ascii=False),
            resource_kind=wire.noun(rows[0].kind, rows[0].id) if rows else "",
            resource_name=rows[0].name if rows else "",
            service=service_name,
            action=action,
            type=f"ai.{vendor}.{service_name}.{name.removesuffix('Service').lower()}.{action}",
            status="ERROR" if error else "DONE",
            subject_kind=subject.kind if subject else "",
            subject_name=subject.name if subject else "",
            source_address=call.headers.get(SOURCE, ""),
            user_agent=call.headers.get("user-agent", "")[:_MAX_TEXT],
        )
    )


def write_no_event(tx: Transaction) -> None:
    """Do as much work as for an event, for a refusal that must take equally long and belongs to no tenant. An
    event for every made-up address would let anybody fill the disk."""
    tx.put_secret(SECRETS_ID, "nobody", b"refused")
