"""Device tokens: what a client keeps from a sign-in by password, to be known at the next one.

Such a token opens nothing. It shows that somebody signed in to this account from this client before, so wrong
passwords that strangers send do not lock its owner out. It is sealed, and nothing is stored for it.
"""

import json
import secrets
from datetime import timedelta

from cryptography.fernet import Fernet, InvalidToken

from neocloud.core.service import Call
from neocloud.core.store.protocol import Transaction
from neocloud.services.iam.resources import SECRETS_ID

LIFETIME = timedelta(days=90)
_SEAL = "device-token-key"


async def device_token(call: Call, account_id: str) -> str:
    """A new one, for who has just signed in to this account."""
    content = json.dumps({"account": account_id, "device": secrets.token_urlsafe(12)}).encode()
    return (await _seal(call)).encrypt_at_time(content, _seconds(call)).decode()


async def device_of(call: Call, token: str, account_id: str) -> str:
    """The id of the device whose token this is; "" when it is not one of this account, or too old."""
    if not token:
        return ""
    try:
        opened = (await _seal(call)).decrypt_at_time(token, int(LIFETIME.total_seconds()), _seconds(call))
        content = json.loads(opened)
    except (InvalidToken, ValueError, TypeError):
        return ""
    return content["device"] if content["account"] == account_id else ""


async def _seal(call: Call) -> Fernet:
    def ensure(tx: Transaction) -> bytes:
        key = tx.secret(SECRETS_ID, _SEAL)
        if key is None:
            key = Fernet.generate_key()
            tx.put_secret(SECRETS_ID, _SEAL, key)
        return key

    store = call.dependencies.store
    return Fernet(await store.read(lambda tx: tx.secret(SECRETS_ID, _SEAL)) or await store.write(ensure))


def _seconds(call: Call) -> int:
    return int(call.dependencies.clock.now().timestamp())
