"""Encrypted tokens, in which a client keeps state for the cloud. Nothing of them is stored.

A device token is one of them: a client keeps it from a sign-in by password and sends it with the next one. It
grants nothing. It shows that somebody signed in to this account from this client before, so wrong passwords
that strangers send do not lock the owner out.
"""

import json
import secrets
from collections.abc import Mapping
from datetime import timedelta

from cryptography.fernet import Fernet, InvalidToken

from neocloud.core.service import Call
from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.types import SECRETS_ID


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
