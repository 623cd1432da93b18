# pyright: strict
"""A service account's credentials file, and the signed assertion that is exchanged for a token.

The file has the form that the published SDKs read (`subject-credentials` with alg, private-key, kid, iss,
sub). Our server adds its endpoint and the tenant and project in which the account starts. The
private key never leaves this module except as a signature.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import cast

import jwt

from neocloud.client.errors import ClientError

ASSERTION_LIFETIME = timedelta(minutes=5)
AUDIENCE = "neocloud"


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
    fields: Mapping[str, object] = (
        cast("Mapping[str, object]", document) if isinstance(document, Mapping) else {}
    )
    found = fields.get("subject-credentials")
    if not isinstance(found, Mapping):
        raise _malformed(path, "it has no `subject-credentials`")
    subject = cast("Mapping[str, object]", found)
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
