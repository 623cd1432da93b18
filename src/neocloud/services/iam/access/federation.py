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
from typing import Any, Unpack

import jwt
from cachetools import TTLCache
from jwt.types import Options

from neocloud.core.clock import Clock
from neocloud.core.json_values import as_list, as_object
from neocloud.core.service import Dependencies
from neocloud.services.iam.access.outgoing import Outgoing, RequestContent, Unanswered
from neocloud.services.iam.access.tokens import UNCHECKED_TIMES

LEEWAY = timedelta(seconds=60)
Claims = Mapping[str, Any]
"""The claims of a JWT: any JSON."""
_LATEST = 1e15
"""Larger numbers are not times in seconds. The limit avoids the conversion of huge integers."""
MAX_TOKEN_CHARS = 16384
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
_UNCHECKED: Options = {
    **UNCHECKED_TIMES,
    "verify_iss": False,
    "require": ["iss", "sub", "aud", "exp", "iat"],
}


class ExternalTokenError(Exception):
    """Says why a token of another issuer is not accepted, as a part of a sentence."""


@dataclass(frozen=True)
class Claimed:
    """The unchecked claims of a token."""

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
        raise ExternalTokenError("it is not a signed JWT") from error
    issuer, subject = claims.get("iss"), claims.get("sub")
    if not isinstance(issuer, str) or not isinstance(subject, str) or not isinstance(key_id, str):
        raise ExternalTokenError("it has no issuer and subject")
    return Claimed(issuer, subject, key_id)


def verify(token: str, keys: jwt.PyJWKSet, *, issuer: str, audiences: Set[str], now: datetime) -> Claims:
    """Return the claims of a token once all are checked. Raises ExternalTokenError."""
    claims = _decode(token, keys)
    if claims.get("iss") != issuer:
        raise ExternalTokenError("it comes from another issuer")
    audience = as_list(claims["aud"]) or [claims["aud"]]
    if not audiences & {each for each in audience if isinstance(each, str)}:
        raise ExternalTokenError(
            "it is for another audience: its `aud` must be " + " or ".join(sorted(audiences))
        )
    _check_times(claims, now)
    return claims


def _decode(token: str, keys: jwt.PyJWKSet) -> Claims:
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


def time_claim(claims: Claims, name: str, default: float | None = None) -> float:
    """Return a NumericDate (RFC 7519 section 2) in seconds since 1970. Raises ValueError for anything else: a
    text, an infinite number, and NaN, which is neither before nor after any time."""
    value = claims.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _LATEST:
        raise ValueError(f"{name} is not a NumericDate")
    return float(value)


def _check_times(claims: Claims, now: datetime) -> None:
    moment, leeway = now.timestamp(), LEEWAY.total_seconds()
    try:
        expires, issued = time_claim(claims, "exp"), time_claim(claims, "iat")
        begins = time_claim(claims, "nbf", issued)
    except ValueError as error:
        raise ExternalTokenError("its times are not numbers") from error
    if expires + leeway <= moment:
        raise ExternalTokenError("it has expired")
    if issued > moment + leeway or begins > moment + leeway:
        raise ExternalTokenError("its times are in the future")


logger = logging.getLogger(__name__)

CACHE_SECONDS = 600.0
RETRY_SECONDS = 10.0
MAX_ISSUERS = 1000
"""The number of issuers that are cached."""


class IssuerUnusable(ExternalTokenError):
    """Has one text for every cause: a caller who names an issuer learns nothing about its address."""

    def __init__(self) -> None:
        super().__init__("the issuer cannot be used now; the log of the cloud has the reason")


@dataclass(frozen=True)
class Endpoints:
    issuer: str
    authorization: str
    token: str
    keys: str
    client_authentication: tuple[str, ...]
    """How its token endpoint accepts a client's secret."""
    names_itself: bool = False
    """Whether each of its authorization responses names the issuer (RFC 9207)."""


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
        """Return the endpoints of an issuer. Raises IssuerUnusable."""
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
        """Return the public keys of an issuer; `given` ones are used as they are. Raises IssuerUnusable."""
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

    async def fetch(self, verb: str, url: str, **more: Unpack[RequestContent]) -> Mapping[str, object]:
        """Return the JSON object that answers a request. Raises IssuerUnusable."""
        try:
            return await self.outgoing.fetch(verb, url, **more)
        except Unanswered as error:
            raise unusable(url, str(error)) from None

    async def _discover(self, issuer: str) -> Endpoints:
        document = await self.fetch("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            raise unusable(issuer, "its `issuer` differs from its address")
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
                raise unusable(
                    issuer, f"its endpoint {endpoint!r} is on another host: neo config set issuer-host"
                )
        return found


def issuers_of(dependencies: Dependencies) -> Issuers:
    return dependencies.provided.get(Issuers)


def unusable(url: str, why: str) -> IssuerUnusable:
    """Log the reason, and return the error for the caller."""
    logger.warning("issuer %.200r: %.500s", url, why)
    return IssuerUnusable()


def _texts(value: object) -> tuple[str, ...]:
    return tuple(each for each in as_list(value) if isinstance(each, str))


def _has_key(keys: jwt.PyJWKSet, key_id: str) -> bool:
    return not key_id or any(key.key_id == key_id for key in keys.keys)


def _key_set(document: object) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(as_object(document))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        raise unusable("(key set)", "it has no usable public keys") from error
