# pyright: strict
"""Access tokens: exchanged for a signed assertion (RFC 8693), kept until shortly before they expire.

A token lives in memory and in a file that only its owner can read, so that a second command does not sign in
again. It is never logged, and a damaged cache file is not an error: the token is fetched again.
"""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from neocloud.client.credentials import Credentials
from neocloud.core import contract
from neocloud.core.osfiles import make_private_parents, write_file

if TYPE_CHECKING:
    from google.protobuf.message import Message

EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT = "urn:ietf:params:oauth:token-type:jwt"
RENEW_BEFORE = timedelta(seconds=60)

Invoke: TypeAlias = "Callable[[str, Message], Any]"
"""Calls one method without a token: (path, request) -> response."""


class TokenSource(Protocol):
    def token(self) -> str: ...

    def forget(self) -> None:
        """Discard the token, because the server refused it: the next one must be new."""
        ...


@dataclass
class StaticToken:
    """A token obtained elsewhere."""

    value: str = field(repr=False)

    def token(self) -> str:
        return self.value

    def forget(self) -> None:
        """Do nothing: the token cannot be renewed."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass
class ExchangedToken:
    """Tokens for a service account, renewed when needed."""

    credentials: Credentials
    invoke: Invoke
    cache_file: Path | None = None
    now: Callable[[], datetime] = _utc_now
    _value: str = field(default="", repr=False)
    _expires_at: datetime = datetime.min.replace(tzinfo=UTC)

    def token(self) -> str:
        if self._is_stale():
            self._read_cache()
        if self._is_stale():
            self._exchange()
            self._write_cache()
        return self._value

    def forget(self) -> None:
        self._value = ""
        if self.cache_file is not None:
            self.cache_file.unlink(missing_ok=True)

    def _is_stale(self) -> bool:
        return not self._value or self._expires_at - self.now() < RENEW_BEFORE

    def _exchange(self) -> None:
        request = contract.message("nebius.iam.v1.ExchangeTokenRequest")(
            grant_type=GRANT_TYPE,
            requested_token_type=ACCESS_TOKEN,
            subject_token=self.credentials.assertion(self.now()),
            subject_token_type=JWT,
        )
        response = self.invoke(EXCHANGE, request)
        self._value = response.access_token
        self._expires_at = self.now() + timedelta(seconds=response.expires_in)

    def _read_cache(self) -> None:
        if self.cache_file is None:
            return
        with suppress(OSError, ValueError, KeyError, TypeError):
            cached = json.loads(self.cache_file.read_text())
            self._expires_at = datetime.fromisoformat(cached["expires_at"])
            self._value = cached["token"]

    def _write_cache(self) -> None:
        if self.cache_file is None:
            return
        with suppress(OSError):
            make_private_parents(self.cache_file)
            cached = {"token": self._value, "expires_at": self._expires_at.isoformat()}
            write_file(self.cache_file, json.dumps(cached))


def cache_file_for(credentials: Credentials, endpoint: str, folder: Path) -> Path:
    """Return a cache file per account, key and endpoint, with a hashed name."""
    # The key itself is part of the name: a new cloud may give an old account id a new key.
    identity = "\n".join(
        (endpoint, credentials.service_account_id, credentials.key_id, credentials.private_key)
    )
    return folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"
