"""Tokens that only this cloud can read, in which a client keeps state for it; nothing of them is stored."""

import json
from collections.abc import Mapping
from typing import Any

from cryptography.fernet import Fernet, InvalidToken

from neocloud.core.service import Call
from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.resources import SECRETS_ID


async def seal(call: Call, key_name: str, content: Mapping[str, Any]) -> str:
    """Return a token with this content, encrypted with the key of this name, which is made if needed."""
    key = await _key(call, key_name)
    return key.encrypt_at_time(json.dumps(dict(content)).encode(), _now(call)).decode()


async def unseal(call: Call, key_name: str, token: str, lifetime_seconds: int) -> dict[str, Any] | None:
    """Return the content of a token; None when it is not one of this key's, or is older than its lifetime."""
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
