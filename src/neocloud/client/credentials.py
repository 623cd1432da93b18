"""A service account's credentials file, and the access tokens that it is exchanged for (RFC 8693).

The file has the form that the published SDKs read (`subject-credentials` with alg, private-key, kid, iss,
sub). Our server adds its endpoint and the tenant and project in which the account starts. The private key
never leaves this module except as a signature.

A token is kept until shortly before it expires, in memory and in a file that only its owner can read, so
that a second command does not sign in again. It is never logged, and a damaged cache file is not an
error: the token is fetched again.
"""

import hashlib
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from neocloud.client.errors import ClientError
from neocloud.core import contract
from neocloud.core.json_values import as_object, is_object
from neocloud.core.osfiles import make_private_parents, write_file

if TYPE_CHECKING:
    from google.protobuf.message import Message


ASSERTION_LIFETIME = timedelta(minutes=5)
AUDIENCE = "neocloud"
EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
JWT = "urn:ietf:params:oauth:token-type:jwt"
RENEW_BEFORE = timedelta(seconds=60)


@dataclass(frozen=True)
class Credentials:
    service_account_id: str
    key_id: str
    private_key: str = field(repr=False)
    endpoint: str = ""
    tenant_id: str = ""
    project_id: str = ""

    def assertion(self, now: datetime) -> str:
        """Return a signed JWT (RS256) for the account, valid for five minutes."""
        claims = {
            "iss": self.service_account_id,
            "sub": self.service_account_id,
            "aud": AUDIENCE,
            "jti": secrets.token_urlsafe(12),
            "iat": now,
            "exp": now + ASSERTION_LIFETIME,
        }
        import jwt  # noqa: PLC0415  a fifth of the start of a command; most have a token already

        try:
            return jwt.encode(claims, self.private_key, algorithm="RS256", headers={"kid": self.key_id})
        except (ValueError, TypeError, jwt.PyJWTError) as error:
            raise ClientError(
                "INVALID_ARGUMENT",
                "The credentials' private key cannot be used: it is not an RSA key in PEM form",
                "Get a fresh credentials file, then run `neo login --credentials FILE`",
            ) from error


def read_credentials(path: Path) -> Credentials:
    """Read a credentials file. Raises ClientError if it is missing, unreadable or malformed."""
    try:
        document = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise ClientError(
            "NOT_FOUND",
            f"There is no credentials file {path}",
            "`neo up` writes one; `neo login` accepts another",
        ) from error
    except OSError as error:
        raise ClientError(
            "PERMISSION_DENIED",
            f"{path} cannot be read: {error.strerror}",
            "Run as the user who owns the file",
        ) from error
    except ValueError as error:
        raise _malformed(path, "it is not JSON") from error
    return parse_credentials(document, path)


def parse_credentials(document: object, path: Path) -> Credentials:
    fields = as_object(document)
    subject = fields.get("subject-credentials")
    if not is_object(subject):
        raise _malformed(path, "it has no `subject-credentials`")
    missing = [key for key in ("private-key", "kid", "sub") if not isinstance(subject.get(key), str)]
    if missing:
        raise _malformed(path, f"`subject-credentials` lacks {', '.join(missing)}")
    if subject.get("alg", "RS256") != "RS256":
        raise _malformed(path, f"its algorithm is {subject['alg']}, and only RS256 is supported")
    return Credentials(
        service_account_id=str(subject["sub"]),
        key_id=str(subject["kid"]),
        private_key=str(subject["private-key"]),
        endpoint=str(fields.get("endpoint", "")),
        tenant_id=str(fields.get("tenant-id", "")),
        project_id=str(fields.get("project-id", "")),
    )


def _malformed(path: Path, why: str) -> ClientError:
    return ClientError(
        "INVALID_ARGUMENT",
        f"{path} is not a credentials file: {why}",
        "Use the file that `neo up` wrote, or one with the keys alg, private-key, kid, iss, sub",
    )


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
