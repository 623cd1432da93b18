"""Other issuers of tokens: where their endpoints and their public keys are (OpenID Connect discovery).

Keys are remembered for some minutes. A token with an unknown key id makes us look again, since issuers change
their keys, but not more often than every few seconds; an issuer that failed is left alone as long. How they
are asked, and which addresses may be: access/outgoing.py.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt

from neocloud.core.clock import Clock
from neocloud.core.service import Dependencies
from neocloud.services.iam.access.external_tokens import ExternalTokenError
from neocloud.services.iam.access.outgoing import Outgoing, Unanswered
from neocloud.services.iam.access.recent import Recent

logger = logging.getLogger(__name__)

KEEP_SECONDS = 600.0
LOOK_AGAIN_SECONDS = 10.0


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
        self._endpoints: Recent[str, Endpoints] = Recent(
            self.clock, max_age_seconds=KEEP_SECONDS, max_size=1000
        )
        self._keys: Recent[str, jwt.PyJWKSet] = Recent(
            self.clock, max_age_seconds=KEEP_SECONDS, max_size=1000
        )
        self._looked: Recent[str, bool] = Recent(
            self.clock, max_age_seconds=LOOK_AGAIN_SECONDS, max_size=1000
        )
        self._failed: Recent[str, bool] = Recent(
            self.clock, max_age_seconds=LOOK_AGAIN_SECONDS, max_size=1000
        )

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
            self._failed.put(issuer, True)
            raise
        self._endpoints.put(issuer, found)
        return found

    async def keys(self, issuer: str, key_id: str, *, given: str = "") -> jwt.PyJWKSet:
        """Its public keys; `given` ones are used as they are. Raises IssuerUnusable."""
        if given:
            return _key_set(json.loads(given))
        known = self._keys.get(issuer)
        if known is not None and (_has(known, key_id) or self._looked.get(issuer)):
            return known
        if self._looked.get(issuer):
            raise IssuerUnusable
        self._looked.put(issuer, True)
        found = _key_set(await self.fetch("GET", (await self.endpoints(issuer)).keys))
        self._keys.put(issuer, found)
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


def _has(keys: jwt.PyJWKSet, key_id: str) -> bool:
    return not key_id or any(key.key_id == key_id for key in keys.keys)


def _key_set(document: Any) -> jwt.PyJWKSet:
    try:
        return jwt.PyJWKSet.from_dict(dict(document))
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError) as error:
        raise unusable("(key set)", "it has no usable public keys") from error
