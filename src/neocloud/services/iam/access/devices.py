"""Device tokens: what a client keeps from a sign-in by password, to be known at the next one.

Such a token opens nothing. It shows that somebody signed in to this account from this client before, so wrong
passwords that strangers send do not lock its owner out. It is sealed, and nothing is stored for it.
"""

import secrets
from datetime import timedelta

from neocloud.core.service import Call
from neocloud.services.iam.access.sealed_tokens import seal, unseal

LIFETIME = timedelta(days=90)
_KEY = "device-token-key"


async def device_token(call: Call, account_id: str) -> str:
    """Return a new token for whoever has just signed in to this account."""
    return await seal(call, _KEY, {"account": account_id, "device": secrets.token_urlsafe(12)})


async def device_of(call: Call, token: str, account_id: str) -> str:
    """Return the id of the token's device; "" when the token is not one of this account, or is too old."""
    content = await unseal(call, _KEY, token, int(LIFETIME.total_seconds())) if token else None
    return content["device"] if content and content["account"] == account_id else ""
