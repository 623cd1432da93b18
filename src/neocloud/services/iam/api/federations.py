"""OIDC federations: client secret, activation, and sign-in by authorization code with PKCE.

The client of a sign-in listens on loopback. The state between the two calls is encrypted into a token that
the client sends back, so nothing is stored for sign-ins that are never finished. The provider accepts a code
once.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from urllib.parse import quote, urlencode, urlsplit

from neocloud.core import contract
from neocloud.core.service import Call, NewOperation, Write
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.nebius.iam.v1 import UserAttributes
from neocloud.messages.neocloud.iam.v1 import (
    ActivateOidcFederationRequest,
    DeactivateOidcFederationRequest,
    FinishOidcRequest,
    OidcFederationSpec,
    OidcFederationStatus,
    SetClientSecretRequest,
    SetClientSecretResponse,
    SignInResponse,
    StartOidcRequest,
    StartOidcResponse,
)
from neocloud.services.iam.access import sessions, users
from neocloud.services.iam.access.federation import (
    Claims,
    Endpoints,
    ExternalTokenError,
    Issuers,
    issuers_of,
    read_claimed,
    unusable,
    verify,
)
from neocloud.services.iam.access.outgoing import RequestContent
from neocloud.services.iam.access.sessions import write_event
from neocloud.services.iam.access.tokens import seal, unseal
from neocloud.services.iam.api.sign_in import SERVICE, answer, start_session
from neocloud.services.iam.defaults import add_membership
from neocloud.services.iam.rules.federations import FederationState
from neocloud.services.iam.types import GROUP, OIDC_FEDERATION, IamState


async def set_client_secret(call: Call, request: SetClientSecretRequest) -> Write[SetClientSecretResponse]:
    def change(tx: Transaction) -> SetClientSecretResponse:
        tx.put_secret(_find_federation(tx, request.id).id, CLIENT_SECRET, request.client_secret.encode())
        return SetClientSecretResponse()

    return Write(change)


async def activate(call: Call, request: ActivateOidcFederationRequest) -> Write[Operation]:
    return await _switch(call, request, IamState.ACTIVE)


async def deactivate(call: Call, request: DeactivateOidcFederationRequest) -> Write[Operation]:
    return await _switch(call, request, IamState.INACTIVE)


async def _switch(
    call: Call,
    request: ActivateOidcFederationRequest | DeactivateOidcFederationRequest,
    state: IamState,
) -> Write[Operation]:
    def change(tx: Transaction) -> NewOperation:
        row = _find_federation(tx, request.id)
        status = OidcFederationStatus(state=FederationState.Value(state)).SerializeToString()
        changed = replace(row, status=status, state=state, updated_at=call.dependencies.clock.now())
        tx.update(changed)
        return NewOperation(changed, f"federation {row.name}")

    return Write(change)


def _find_federation(tx: Transaction, federation_id: str) -> Resource:
    row = tx.get(federation_id)
    if row is None or row.kind != OIDC_FEDERATION:
        raise contract.not_found("OIDC federation", federation_id)
    return row


CLIENT_SECRET = "client-secret"
SCOPE = "openid email profile"
LOGIN_SECONDS = 600
_KEY = "oidc-login-key"
_CLAIMS = ("sub", "name", "given_name", "family_name", "preferred_username", "email", "email_verified")


@dataclass(frozen=True)
class Login:
    """A sign-in that has been started."""

    federation_id: str
    redirect_uri: str
    state: str
    nonce: str
    verifier: str


async def start(call: Call, request: StartOidcRequest) -> StartOidcResponse:
    if not is_loopback_address(request.redirect_uri):
        raise contract.bad_field("redirect_uri", "must be http://127.0.0.1:PORT/... or http://[::1]:PORT/...")
    federation = await _federation(call, request.federation_id)
    spec, issuers = OidcFederationSpec.FromString(federation.spec), issuers_of(call.dependencies)
    try:
        endpoints = await issuers.endpoints(spec.issuer_url)
        if not endpoints.authorization:
            raise unusable(spec.issuer_url, "it names no authorization endpoint")
    except ExternalTokenError as error:
        raise contract.unavailable(f"Sign-in by this federation is not possible now: {error}.") from error
    login = Login(
        federation.id,
        request.redirect_uri,
        *(secrets.token_urlsafe(32) for _ in ("state", "nonce", "verifier")),
    )
    return StartOidcResponse(
        authorization_url=_authorization_url(endpoints, spec.client_id, login),
        state=login.state,
        login_token=await seal(call, _KEY, login.__dict__),
        expires_in=LOGIN_SECONDS,
    )


async def finish(call: Call, request: FinishOidcRequest) -> SignInResponse:
    login = await _open(call, request)
    federation = await _federation(call, login.federation_id)
    try:
        claims = await _claims(call, federation, login, request)
    except ExternalTokenError as error:
        await _refused(call, federation, str(error))
        raise contract.unauthenticated(f"The provider's sign-in is not accepted: {error}.") from error
    now = call.dependencies.clock.now()

    def admit(tx: Transaction) -> sessions.OpenSession | contract.ApiError:
        account = _account(tx, federation, claims, now)
        if account is None or not users.is_usable(tx, account):
            return contract.permission_denied(
                "iam.sessions.create",
                federation.id,
                "There is no account for you in this tenant, or it is blocked. Ask an admin of the tenant.",
            )
        return start_session(tx, call, account, "OIDC", request.client, f"{SERVICE}/FinishOidc")

    return await answer(call, await call.dependencies.store.write(admit))


def is_loopback_address(uri: str) -> bool:
    """Return whether the address is on the person's own machine (RFC 8252). Only numeric addresses count,
    since a name may resolve to another one."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        return False
    is_plain = parts.scheme == "http" and not parts.fragment and not parts.username
    return is_plain and parts.hostname in ("127.0.0.1", "::1") and bool(port)


async def _federation(call: Call, federation_id: str) -> Resource:
    row = await call.dependencies.store.read(lambda tx: tx.get(federation_id))
    if row is None or row.kind != OIDC_FEDERATION or row.state != IamState.ACTIVE:
        raise contract.not_found("active OIDC federation", federation_id)
    return row


def _authorization_url(endpoints: Endpoints, client_id: str, login: Login) -> str:
    digest = hashlib.sha256(login.verifier.encode()).digest()
    query = urlencode(
        {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": login.redirect_uri,
            "scope": SCOPE,
            "state": login.state,
            "nonce": login.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
    )
    return f"{endpoints.authorization}{'&' if '?' in endpoints.authorization else '?'}{query}"


async def _open(call: Call, request: FinishOidcRequest) -> Login:
    content = await unseal(call, _KEY, request.login_token, LOGIN_SECONDS)
    login = Login(**content) if content else None
    if login is None or not hmac.compare_digest(login.state.encode(), request.state.encode()):
        raise contract.unauthenticated("This sign-in was not started here, or took too long. Start again.")
    return login


async def _claims(call: Call, federation: Resource, login: Login, request: FinishOidcRequest) -> Claims:
    """Return the provider's checked claims about the person who signed in."""
    spec = OidcFederationSpec.FromString(federation.spec)
    issuers = issuers_of(call.dependencies)
    endpoints = await issuers.endpoints(spec.issuer_url)
    _check_sender(request.iss, endpoints)
    sealed = await call.dependencies.store.read(lambda tx: tx.secret(federation.id, CLIENT_SECRET))
    secret = (sealed or b"").decode()
    id_token = await _redeem(issuers, endpoints, spec.client_id, secret, login, request.code)
    keys = await issuers.keys(spec.issuer_url, read_claimed(id_token).key_id)
    now = call.dependencies.clock.now()
    claims = verify(id_token, keys, issuer=spec.issuer_url, audiences={spec.client_id}, now=now)
    if claims.get("azp", spec.client_id) != spec.client_id:
        raise ExternalTokenError("it was issued to another client")
    if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), login.nonce.encode()):
        raise ExternalTokenError("it answers another sign-in")
    _check_domain(claims, spec.email_domains)
    return claims


async def _redeem(
    issuers: Issuers, endpoints: Endpoints, client_id: str, secret: str, login: Login, code: str
) -> str:
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": login.redirect_uri,
        "code_verifier": login.verifier,
        "client_id": client_id,
    }
    more: RequestContent = {"data": form}
    if secret and "client_secret_basic" in endpoints.client_authentication:
        more["auth"] = (quote(client_id, safe=""), quote(secret, safe=""))
    elif secret:
        form["client_secret"] = secret
    document = await issuers.fetch("POST", endpoints.token, **more)
    id_token = document.get("id_token")
    if not isinstance(id_token, str):
        raise unusable(endpoints.issuer, "it returned no identity token")
    return id_token


def _check_sender(issuer: str, endpoints: Endpoints) -> None:
    """Check that the code comes from this issuer (RFC 9207). Otherwise it must not be sent to this issuer's
    token endpoint (mix-up attack)."""
    if issuer != endpoints.issuer and (issuer or endpoints.names_itself):
        raise ExternalTokenError("the code was not issued by this issuer")


def _check_domain(claims: Claims, domains: Iterable[str]) -> None:
    allowed = {domain.casefold() for domain in domains}
    domain = str(claims.get("email", "")).rpartition("@")[2].casefold()
    if allowed and (claims.get("email_verified") is not True or domain not in allowed):
        raise ExternalTokenError("the e-mail address is not verified, or its domain is not allowed")


def _account(tx: Transaction, federation: Resource, claims: Claims, now: datetime) -> Resource | None:
    """Return the account of this identity. Create it when the federation creates accounts."""
    wanted = {name: claims[name] for name in _CLAIMS if isinstance(claims.get(name), str | bool)}
    attributes = UserAttributes(**wanted)
    account = users.find_by_identity(tx, federation.id, attributes.sub)
    spec = OidcFederationSpec.FromString(federation.spec)
    if account is not None:
        users.put_attributes(tx, account.id, attributes)
        return account
    if not spec.user_account_auto_creation:
        return None
    account = users.add_user(tx, federation.parent_id, attributes, now, federation_id=federation.id)
    for group_id in spec.group_ids:
        group = tx.get(group_id)
        if group is not None and group.kind == GROUP and group.parent_id == federation.parent_id:
            add_membership(tx, group, account, now)
    return account


async def _refused(call: Call, federation: Resource, why: str) -> None:
    error = contract.unauthenticated(f"A sign-in by the federation was refused: {why}.")

    def record(tx: Transaction) -> None:
        write_event(tx, call, f"{SERVICE}/FinishOidc", None, federation.id, error=error)

    await call.dependencies.store.write(record)
