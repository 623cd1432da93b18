"""Access tokens: claims, signature, verification and issue; and encrypted tokens, in which a client keeps
state for the cloud.

An access token is a JWT that is signed with the cloud's own Ed25519 key and valid for an hour. The key is
created on first use and stored encrypted. Times are checked against the injected clock, never the machine's.

Nothing of an encrypted token is stored. A device token is one of them: a client keeps it from a sign-in by
password and sends it with the next one. It grants nothing. It shows that somebody signed in to this account
from this client before, so wrong passwords from other clients do not lock the owner out.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import jwt
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from jwt.types import Options

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.service import Call
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.types import SECRETS_ID, SERVICE_ACCOUNT, SIGNING_KEY_SECRET, TokenIssuer

ACCESS_TOKEN_LIFETIME = timedelta(hours=1)
ISSUER = "neocloud"
TYPE = "at+jwt"
ALGORITHM = "EdDSA"
_REQUIRED = ["iss", "sub", "key", "iat", "exp"]
UNCHECKED_TIMES: Options = {
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_aud": False,
}


@dataclass(frozen=True)
class Actor:
    """The account that acts as the subject of a token, and its credential."""

    id: str
    credential_id: str


@dataclass(frozen=True)
class AccessClaims:
    subject_id: str
    credential_id: str
    """The id of the credential that the token was exchanged for: a public key, a session, federated
    credentials, or the account itself when the cloud issued the token on its own. The token becomes invalid
    with it. "" for an impersonated account, whose actor has the credential."""
    issued_at: datetime
    expires_at: datetime
    actor: Actor | None = None
    scopes: tuple[str, ...] = ()
    """The only permissions that the token can use; none named: all of the account."""


def ensure_signing_key(tx: Transaction) -> Ed25519PrivateKey:
    raw = tx.secret(SECRETS_ID, SIGNING_KEY_SECRET)
    if raw is None:
        raw = Ed25519PrivateKey.generate().private_bytes_raw()
        tx.put_secret(SECRETS_ID, SIGNING_KEY_SECRET, raw)
    return Ed25519PrivateKey.from_private_bytes(raw)


def find_signing_key(tx: Transaction) -> Ed25519PrivateKey | None:
    raw = tx.secret(SECRETS_ID, SIGNING_KEY_SECRET)
    return Ed25519PrivateKey.from_private_bytes(raw) if raw else None


def sign_access_token(claims: AccessClaims, key: Ed25519PrivateKey) -> str:
    payload: dict[str, object] = {
        "iss": ISSUER,
        "sub": claims.subject_id,
        "key": claims.credential_id,
        "iat": claims.issued_at.timestamp(),
        "exp": int(claims.expires_at.timestamp()),
        "jti": secrets.token_urlsafe(12),
    }
    if claims.actor is not None:
        payload["act"] = {"sub": claims.actor.id, "key": claims.actor.credential_id}
    if claims.scopes:
        payload["scopes"] = list(claims.scopes)
    return jwt.encode(payload, key, algorithm=ALGORITHM, headers={"typ": TYPE})


def read_access_token(token: str, key: Ed25519PrivateKey) -> AccessClaims:
    """Return the claims of a token with our signature, expired or not. Raises ApiError (unauthenticated)."""
    options: Options = {"require": _REQUIRED, **UNCHECKED_TIMES}
    try:
        claims = jwt.decode(token, key.public_key(), algorithms=[ALGORITHM], issuer=ISSUER, options=options)
        acting = claims.get("act")
        return AccessClaims(
            subject_id=str(claims["sub"]),
            credential_id=str(claims["key"]),
            issued_at=datetime.fromtimestamp(float(claims["iat"]), UTC),
            expires_at=datetime.fromtimestamp(int(claims["exp"]), UTC),
            actor=Actor(str(acting["sub"]), str(acting["key"])) if acting else None,
            scopes=tuple(map(str, claims.get("scopes", ()))),
        )
    except (jwt.InvalidTokenError, ValueError, TypeError, KeyError, OverflowError) as error:
        raise contract.unauthenticated(
            "The access token is missing, was not issued by this cloud, or was altered. "
            "Sign in again, or exchange your service account key for a new one."
        ) from error


@dataclass(frozen=True)
class AccessToken:
    value: str
    expires_at: datetime
    lifetime: timedelta

    def __repr__(self) -> str:
        return f"AccessToken(until {self.expires_at})"


async def issue(
    store: Store,
    now: datetime,
    subject_id: str,
    credential_id: str,
    *,
    lifetime: timedelta = ACCESS_TOKEN_LIFETIME,
    actor: Actor | None = None,
) -> AccessToken:
    """Return a token for a subject whose credential the caller has checked."""
    return await issue_for(store, AccessClaims(subject_id, credential_id, now, now + lifetime, actor))


async def issue_for(store: Store, claims: AccessClaims) -> AccessToken:
    """Return a token with these claims, which the caller has checked."""
    key = await store.read(find_signing_key) or await store.write(ensure_signing_key)
    lifetime = claims.expires_at - claims.issued_at
    return AccessToken(sign_access_token(claims, key), claims.expires_at, lifetime)


def token_issuer(store: Store, clock: Clock) -> TokenIssuer:
    """Return the issuer for services that pass a service account's token to its workloads."""

    async def issue_for(service_account_id: str, lifetime: timedelta) -> tuple[str, datetime]:
        def exists(tx: Transaction) -> bool:
            row = tx.get(service_account_id)
            return row is not None and row.kind == SERVICE_ACCOUNT and row.deleted_at is None

        if not await store.read(exists):
            raise contract.not_found("service account", service_account_id)
        token = await issue(store, clock.now(), service_account_id, service_account_id, lifetime=lifetime)
        return token.value, token.expires_at

    return issue_for


async def seal(call: Call, key_name: str, content: Mapping[str, str]) -> str:
    """Return a token with this content, encrypted with the key of this name, which is created if needed."""
    key = await _key(call, key_name)
    return key.encrypt_at_time(json.dumps(dict(content)).encode(), _now(call)).decode()


async def unseal(call: Call, key_name: str, token: str, lifetime_seconds: int) -> dict[str, str] | None:
    """Return the content of a token; None when it was not made with this key, or has expired."""
    try:
        opened = (await _key(call, key_name)).decrypt_at_time(token, lifetime_seconds, _now(call))
    except (InvalidToken, ValueError, TypeError):
        return None
    return json.loads(opened)


async def _key(call: Call, name: str) -> Fernet:
    def ensure(tx: Transaction) -> bytes:
        key = tx.secret(SECRETS_ID, name)
        if key is None:
            key = Fernet.generate_key()
            tx.put_secret(SECRETS_ID, name, key)
        return key

    store = call.dependencies.store
    return Fernet(await store.read(lambda tx: tx.secret(SECRETS_ID, name)) or await store.write(ensure))


def _now(call: Call) -> int:
    return int(call.dependencies.clock.now().timestamp())


DEVICE_TOKEN_LIFETIME = timedelta(days=90)
_DEVICE_TOKEN_KEY = "device-token-key"


async def device_token(call: Call, account_id: str) -> str:
    """Return a new device token, for a client that has just signed in to this account."""
    return await seal(call, _DEVICE_TOKEN_KEY, {"account": account_id, "device": secrets.token_urlsafe(12)})


async def device_of(call: Call, token: str, account_id: str) -> str:
    """Return the id of the token's device; "" when the token is not for this account, or is too old."""
    content = (
        await unseal(call, _DEVICE_TOKEN_KEY, token, int(DEVICE_TOKEN_LIFETIME.total_seconds()))
        if token
        else None
    )
    return content["device"] if content and content["account"] == account_id else ""
