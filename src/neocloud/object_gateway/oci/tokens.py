"""Tokens that the registry gives its clients for some minutes: whose they are, and what they were asked for.

They are signed, not encrypted, and say nothing that the client did not say. The rights of a token are decided
at each request: an action must have been requested, and the caller's roles must still allow it.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

LIFETIME = timedelta(minutes=5)
MAX_SCOPES = 50
_PURPOSE = b"neocloud: tokens of the registry, 1"


@dataclass(frozen=True)
class Token:
    subject_id: str
    subject_name: str
    tenant_id: str
    aws_access_key_id: str
    """The id of the access key that it was made with; "": it was made with a token of the cloud."""
    proof: str
    """The proof of the token of the cloud, as the control plane gave it."""
    expires_at: datetime
    scopes: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """The requested actions by name."""

    def allows(self, name: str, action: str) -> bool:
        asked = self.scopes.get(name, frozenset())
        return action in asked or "*" in asked


class TokenSigner:
    def __init__(self, key: bytes) -> None:
        """`key` is a secret of the store, from which the key of the tokens is derived."""
        self._key = hmac.digest(key, _PURPOSE, "sha256")

    def sign(self, token: Token) -> str:
        content = orjson.dumps(
            {
                "s": token.subject_id,
                "n": token.subject_name,
                "t": token.tenant_id,
                "k": token.aws_access_key_id,
                "p": token.proof,
                "e": token.expires_at.timestamp(),
                "a": {name: sorted(actions) for name, actions in token.scopes.items()},
            }
        )
        return f"{_encode(content)}.{_encode(self._mac(content))}"

    def read(self, text: str, now: datetime) -> Token | None:
        """Return a token that was signed here and is valid now; None for any other text."""
        content, _, mac = text.partition(".")
        try:
            raw = _decode(content)
            if not hmac.compare_digest(self._mac(raw), _decode(mac)):
                return None
        except (binascii.Error, UnicodeEncodeError):
            return None
        found: dict[str, Any] = orjson.loads(raw)
        expires_at = datetime.fromtimestamp(found["e"], now.tzinfo)
        if expires_at <= now:
            return None
        scopes = {name: frozenset[str](actions) for name, actions in found["a"].items()}
        return Token(found["s"], found["n"], found["t"], found["k"], found["p"], expires_at, scopes)

    def _mac(self, content: bytes) -> bytes:
        return hmac.digest(self._key, content, "sha256")


def _encode(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def _decode(text: str) -> bytes:
    padded = text.encode("ascii") + b"=" * (-len(text) % 4)
    return base64.b64decode(padded, altchars=b"-_", validate=True)
