"""Checks a JWT that another issuer signed: signature, issuer, audience, times. Pure; the keys are given.

Which algorithm a token may use follows from the kind of key; only public-key algorithms are known here, so a
token cannot turn a public key into a shared secret.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import jwt

LEEWAY = timedelta(seconds=60)
_LATEST = 1e15
"""Larger numbers are no times in seconds; it keeps huge integers from being converted."""
MAX_TOKEN_CHARS = 16384
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_UNCHECKED: Any = {
    **dict.fromkeys(("verify_exp", "verify_nbf", "verify_iat", "verify_aud", "verify_iss"), False),
    "require": ["iss", "sub", "aud", "exp", "iat"],
}


class ExternalTokenError(Exception):
    """Why a token of another issuer is not believed; a part of a sentence."""


@dataclass(frozen=True)
class Claimed:
    """What a token says of itself, before anything of it is believed."""

    issuer: str
    subject: str
    key_id: str


def read_claimed(token: str) -> Claimed:
    if len(token) > MAX_TOKEN_CHARS:
        raise ExternalTokenError("it is too long")
    try:
        key_id = jwt.get_unverified_header(token).get("kid", "")
        claims = jwt.decode(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError) as error:
        raise ExternalTokenError("it is no signed JWT") from error
    issuer, subject = claims.get("iss"), claims.get("sub")
    if not isinstance(issuer, str) or not isinstance(subject, str) or not isinstance(key_id, str):
        raise ExternalTokenError("it has no issuer and subject")
    return Claimed(issuer, subject, key_id)


def verify(
    token: str, keys: jwt.PyJWKSet, *, issuer: str, audiences: Set[str], now: datetime
) -> Mapping[str, Any]:
    """The claims, all checked. Raises ExternalTokenError."""
    claims = _decode(token, keys)
    if claims.get("iss") != issuer:
        raise ExternalTokenError("it comes from another issuer")
    audience = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
    if not audiences & {each for each in audience if isinstance(each, str)}:
        raise ExternalTokenError(
            "it is meant for somebody else: its `aud` must be " + " or ".join(sorted(audiences))
        )
    _check_times(claims, now)
    return claims


def _decode(token: str, keys: jwt.PyJWKSet) -> dict[str, Any]:
    key_id = read_claimed(token).key_id
    for key in keys.keys:
        if key_id and key.key_id and key.key_id != key_id:
            continue
        allowed = ALGORITHMS.get(key.key_type or "", ())
        if not allowed:
            continue
        try:
            return jwt.decode(token, key.key, algorithms=allowed, options=_UNCHECKED)
        except jwt.InvalidSignatureError:
            continue
        except (jwt.InvalidTokenError, TypeError, ValueError) as error:
            raise ExternalTokenError(f"it is not valid ({type(error).__name__})") from error
    raise ExternalTokenError("no key of its issuer signed it")


def time_claim(claims: Mapping[str, Any], name: str, default: float | None = None) -> float:
    """A NumericDate (RFC 7519 section 2) in seconds since 1970. Raises ValueError for anything else: a text,
    an infinite number, and NaN, which is neither before nor after any time."""
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LATEST:
        raise ValueError(f"{name} is no NumericDate")
    return float(value)


def _check_times(claims: Mapping[str, Any], now: datetime) -> None:
    moment, leeway = now.timestamp(), LEEWAY.total_seconds()
    try:
        expires, issued = time_claim(claims, "exp"), time_claim(claims, "iat")
        begins = time_claim(claims, "nbf", issued)
    except ValueError as error:
        raise ExternalTokenError("its times are no numbers") from error
    if expires + leeway <= moment:
        raise ExternalTokenError("it has expired")
    if issued > moment + leeway or begins > moment + leeway:
        raise ExternalTokenError("it is from the future")
