"""A person's session: signing in, and tokens from a file that only they can read.

Each refresh uses up the refresh token in the file, so concurrent commands wait for each other: the second one
finds the token that the first one fetched.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from neocloud.client.credentials import RENEW_BEFORE, Invoke
from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.osfiles import locked, make_private_parents, write_file

if TYPE_CHECKING:
    from neocloud.messages.neocloud.iam.v1 import SignInResponse

SIGN_IN = "neocloud.iam.v1.SignInService"


@dataclass(frozen=True)
class Session:
    id: str
    account_id: str
    tenant_id: str
    refresh_token: str = field(repr=False)
    access_token: str = field(repr=False)
    expires_at: str
    """Expiry of the access token in ISO form."""

    def is_fresh(self, now: datetime) -> bool:
        return bool(self.access_token) and datetime.fromisoformat(self.expires_at) - now > RENEW_BEFORE


def utc_now() -> datetime:
    return datetime.now(UTC)


def sign_in(invoke: Invoke, verb: str, fields: Mapping[str, object], now: datetime) -> Session:
    """Call a sign-in verb that answers with tokens."""
    path = f"{SIGN_IN}/{verb}"
    return _session(invoke(path, contract.method(path).input(**fields)), now)


def sign_out(invoke: Invoke, session: Session) -> None:
    path = f"{SIGN_IN}/SignOut"
    invoke(path, contract.method(path).input(refresh_token=session.refresh_token))


def read_session(path: Path) -> Session:
    """Read a session. Raises ClientError if there is none."""
    try:
        return Session(**json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ClientError("UNAUTHENTICATED", "You are signed out", "Sign in with `neo login`") from error
    except (OSError, ValueError, TypeError) as error:
        raise ClientError(
            "UNAUTHENTICATED", f"The session in {path} cannot be read", "Sign in again with `neo login`"
        ) from error


def write_session(path: Path, session: Session) -> None:
    """Write a session atomically, readable by its owner only."""
    make_private_parents(path)
    write_file(path, json.dumps(asdict(session)))


def forget_session(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.with_suffix(".lock").unlink(missing_ok=True)


@dataclass
class SessionToken:
    """A TokenSource: the session's access token, refreshed when needed."""

    path: Path
    invoke: Invoke
    now: Callable[[], datetime] = utc_now

    def token(self) -> str:
        session = read_session(self.path)
        if session.is_fresh(self.now()):
            return session.access_token
        with _locked(self.path):
            session = read_session(self.path)
            if not session.is_fresh(self.now()):
                session = self._refresh(session)
        return session.access_token

    def forget(self) -> None:
        """Discard the access token, so that the next one is new or the session is reported as ended."""
        with suppress(ClientError), _locked(self.path):
            write_session(self.path, replace(read_session(self.path), access_token=""))

    def _refresh(self, session: Session) -> Session:
        try:
            fields = {"refresh_token": session.refresh_token}
            fresh = sign_in(self.invoke, "Refresh", fields, self.now())
        except ClientError as error:
            if error.code != "UNAUTHENTICATED":
                raise
            raise ClientError(
                "UNAUTHENTICATED", "Your session has ended", "Sign in again with `neo login`"
            ) from error
        write_session(self.path, fresh)
        return fresh


def _locked(path: Path) -> AbstractContextManager[None]:
    """Hold the session's lock, which the kernel releases when the process ends."""
    return locked(path.with_suffix(".lock"), wait=True)


def _session(answer: "SignInResponse", now: datetime) -> Session:
    return Session(
        id=answer.session_id,
        account_id=answer.tenant_user_account_id,
        tenant_id=answer.tenant_id,
        refresh_token=answer.refresh_token,
        access_token=answer.access_token,
        expires_at=(now + timedelta(seconds=answer.expires_in)).isoformat(),
    )
