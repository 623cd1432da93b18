"""Other issuers of tokens: where their endpoints and their public keys are (OpenID Connect discovery).

Keys are remembered for some minutes. A token with an unknown key id makes us look again, since issuers change
their keys, but not more often than every few seconds. Only https is spoken; plain http only to this machine,
and only while this cloud itself listens to nobody else. Redirects are not followed, answers are bounded.
"""

import ipaddress
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import jwt

from neocloud.core.clock import Clock
from neocloud.core.service import Dependencies
from neocloud.services.iam.access.external_tokens import ExternalTokenError
from neocloud.services.iam.access.recent import Recent

ISSUERS = "iam.issuers"
KEEP_SECONDS = 600.0
LOOK_AGAIN_SECONDS = 10.0
TIMEOUT_SECONDS = 5.0
MAX_ANSWER_BYTES = 512 * 1024


def new_http() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=TIMEOUT_SECONDS, follow_redirects=False)


@dataclass(frozen=True)
class Endpoints:
    issuer: str
    authorization: str
    token: str
    keys: str
    client_authentication: tuple[str, ...]
    """How its token endpoint takes a client's secret."""


@dataclass
class Issuers:
    """One for the whole cloud, in `Dependencies.extras`."""

    clock: Clock
    http: Callable[[], httpx.AsyncClient] = new_http
    is_plain_allowed: bool = True

    def __post_init__(self) -> None:
        self._endpoints: Recent[str, Endpoints] = Recent(
            self.clock, max_age_seconds=KEEP_SECONDS, max_size=1000
        )
        self._keys: Recent[str, jwt.PyJWKSet] = Recent(
            self.clock, max_age_seconds=KEEP_SECONDS, max_size=1000
        )
        self._looked: Recent[str, bool] = Recent(
            self.clock, max_age_seconds=LOOK_AGAIN_SECONDS, max_size=1000
        )

    async def endpoints(self, issuer: str) -> Endpoints:
        known = self._endpoints.get(issuer)
        if known is not None:
            return known
        document = await self.fetch("GET", issuer.rstrip("/") + "/.well-known/openid-configuration")
        if document.get("issuer") != issuer:
            raise ExternalTokenError("the issuer calls itself by another name than its address")
        found = Endpoints(
            issuer,
            str(document.get("authorization_endpoint", "")),
            str(document.get("token_endpoint", "")),
            str(document.get("jwks_uri", "")),
            tuple(document.get("token_endpoint_auth_methods_supported") or ["client_secret_basic"]),
        )
        self._endpoints.put(issuer, found)
        return found

    async def keys(self, issuer: str, key_id: str, *, given: str = "") -> jwt.PyJWKSet:
        """Its public keys; `given` ones are used as they are."""
        if given:
            return _key_set(json.loads(given))
        known = self._keys.get(issuer)
        if known is not None and (_has(known, key_id) or self._looked.get(issuer)):
            return known
        self._looked.put(issuer, True)
        found = _key_set(await self.fetch("GET", (await self.endpoints(issuer)).keys))
        self._keys.put(issuer, found)
        return found

    async def fetch(self, verb: str, url: str, **more: Any) -> Mapping[str, Any]:
        """A JSON object. Raises ExternalTokenError; its words hold nothing of the answer."""
        self.check_url(url)
        try:
            async with self.http() as client, client.stream(verb, url, **more) as answer:
                body = b""
                async for chunk in answer.aiter_bytes():
                    body += chunk
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ExternalTokenError("the issuer's answer is too long")
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ExternalTokenError(f"the issuer does not answer ({type(error).__name__})") from error
        if status != httpx.codes.OK:
            raise ExternalTokenError(f"the issuer answers with status {status}")
        try:
            document = json.loads(body)
        except ValueError as error:
            raise ExternalTokenError("the issuer's answer is no JSON") from error
        if not isinstance(document, Mapping):
            raise ExternalTokenError("the issuer's answer is no JSON object")
        return document

    def check_url(self, url: str) -> None:
        """Raises ExternalTokenError unless it may be asked."""
        if not is_allowed_url(url, self.is_plain_allowed):
            raise ExternalTokenError("the issuer's address is not https")


def is_allowed_url(url: str, is_plain_allowed: bool) -> bool:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https":
        return bool(host) and "@" not in parts.netloc
    return parts.scheme == "http" and is_plain_allowed and "@" not in parts.netloc and is_loopback(host)


def issuers_of(dependencies: Dependencies) -> Issuers:
    return dependencies.extras[ISSUERS]


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _has(keys: jwt.PyJWKSet, key_id: str) -> bool:
    return not key_id or any(key.key_id == key_id for key in keys.keys)


def _key_set(document: Any) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(dict(document))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        raise ExternalTokenError("the issuer has no usable public keys") from error
