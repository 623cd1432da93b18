"""Gives out access tokens: signs claims with the cloud's key, which is made on first use."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.store.protocol import Store, Transaction
from neocloud.services.iam.access.tokens import (
    ACCESS_TOKEN_LIFETIME,
    AccessClaims,
    Actor,
    ensure_signing_key,
    find_signing_key,
    sign_access_token,
)
from neocloud.services.iam.resources import SERVICE_ACCOUNT, TokenIssuer


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
    proof_id: str,
    *,
    lifetime: timedelta = ACCESS_TOKEN_LIFETIME,
    actor: Actor | None = None,
) -> AccessToken:
    """A token for a subject whose proof the caller has checked."""
    key = await store.read(find_signing_key) or await store.write(ensure_signing_key)
    claims = AccessClaims(subject_id, proof_id, now, now + lifetime, actor)
    return AccessToken(sign_access_token(claims, key), claims.expires_at, lifetime)


def token_issuer(store: Store, clock: Clock) -> TokenIssuer:
    """For parts of the cloud that hand a service account's token to its workloads."""

    async def issue_for(service_account_id: str, lifetime: timedelta) -> tuple[str, datetime]:
        def exists(tx: Transaction) -> bool:
            row = tx.get(service_account_id)
            return row is not None and row.kind == SERVICE_ACCOUNT and row.deleted_at is None

        if not await store.read(exists):
            raise contract.not_found("service account", service_account_id)
        token = await issue(store, clock.now(), service_account_id, service_account_id, lifetime=lifetime)
        return token.value, token.expires_at

    return issue_for
