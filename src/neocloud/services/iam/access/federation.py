"""Other issuers of tokens: their endpoints, their public keys, and the verification of their tokens.

Endpoints and keys are found by OpenID Connect discovery and cached for some minutes. A token with an unknown
key id makes us fetch the keys again, since issuers change them, but not more often than every few seconds; an
issuer that failed is not contacted for as long. The algorithm of a token follows from the kind of its key;
only public-key algorithms are known here, so a token cannot turn a public key into a shared secret. Requests
and allowed addresses: access/outgoing.py.
"""

import json
import logging
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import jwt
from cachetools import TTLCache

from neocloud.core.clock import Clock
from neocloud.core.service import Dependencies
from neocloud.services.iam.access.outgoing import Outgoing, Unanswered

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


logger = logging.getLogger(__name__)

CACHE_SECONDS = 600.0
RETRY_SECONDS = 10.0
MAX_ISSUERS = 1000
"""How many are cached."""


class IssuerUnusable(ExternalTokenError):
    """One text for whatever went wrong: who names an issuer learns nothing of what is at its address."""

    def __init__(self) -> None:
        super().__init__("the issuer cannot be used now; the log of the cloud says why")


@dataclass(frozen=True)
class Endpoints:
    issuer: str
    authorization: str
    token: str
    keys: str
    client_authentication: tuple[str, ...]
    """How its token endpoint takes a client's secret."""
    names_itself: bool = False
    """Whether each of its authorization responses says which issuer it is from (RFC 9207)."""


@dataclass
class Issuers:
    """The clients of all issuers; there is one in each control plane."""

    clock: Clock
    outgoing: Outgoing = field(default_factory=Outgoing)

    def __post_init__(self) -> None:
        self._endpoints: TTLCache[str, Endpoints] = self._cache(CACHE_SECONDS)
        self._keys: TTLCache[str, jwt.PyJWKSet] = self._cache(CACHE_SECONDS)
        self._fetched: TTLCache[str, bool] = self._cache(RETRY_SECONDS)
        self._failed: TTLCache[str, bool] = self._cache(RETRY_SECONDS)

    def _cache(self, seconds: float) -> TTLCache[str, Any]:
        return TTLCache(MAX_ISSUERS, ttl=seconds, timer=self.clock.monotonic)

    async def endpoints(self, issuer: str) -> Endpoints:
        """Raises IssuerUnusable."""
        known = self._endpoints.get(issuer)
        if known is not None:
            return known
        if self._failed.get(issuer):
            raise IssuerUnusable
        try:
            found = await self._discover(issuer)
        except IssuerUnusable:
            self._failed[issuer] = True
            raise
        self._endpoints[issuer] = found
        return found

    async def keys(self, issuer: str, key_id: str, *, given: str = "") -> jwt.PyJWKSet:
        """Its public keys; `given` ones are used as they are. Raises IssuerUnusable."""
        if given:
            return _key_set(json.loads(given))
        known = self._keys.get(issuer)
        if known is not None and (_has_key(known, key_id) or self._fetched.get(issuer)):
            return known
        if self._fetched.get(issuer):
            raise IssuerUnusable
        self._fetched[issuer] = True
        found = _key_set(await self.fetch("GET", (await self.endpoints(issuer)).keys))
        self._keys[issuer] = found
        return found

    async def fetch(self, verb: str, url: str, **more: Any) -> Mapping[str, Any]:
        """A JSON object. Raises IssuerUnusable."""
        try:
            return await self.outgoing.fetch(verb, url, **more)
        except Unanswered as error:
            raise unusable(url, str(error)) from None

    async def _discover(self, issuer: str) -> Endpoints:
        document = await self.fetch("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            raise unusable(issuer, "it calls itself by another name than its address")
        found = Endpoints(
            issuer,
            str(document.get("authorization_endpoint", "")),
            str(document.get("token_endpoint", "")),
            str(document.get("jwks_uri", "")),
            _texts(document.get("token_endpoint_auth_methods_supported")) or ("client_secret_basic",),
            document.get("authorization_response_iss_parameter_supported") is True,
        )
        for endpoint in filter(None, (found.authorization, found.token, found.keys)):
            if not self.outgoing.may_serve(issuer, endpoint):
                raise unusable(issuer, f"its endpoint {endpoint!r} is on another host: neo up --issuer-host")
        return found


def issuers_of(dependencies: Dependencies) -> Issuers:
    return dependencies.provided.get(Issuers)


def unusable(url: str, why: str) -> IssuerUnusable:
    """The error that the caller is told, once the reason is in the log."""
    logger.warning("issuer %.200r: %.500s", url, why)
    return IssuerUnusable()


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _has_key(keys: jwt.PyJWKSet, key_id: str) -> bool:
    return not key_id or any(key.key_id == key_id for key in keys.keys)


def _key_set(document: Any) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(dict(document))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        raise unusable("(key set)", "it has no usable public keys") from error
