"""Who calls: from an access token to a Subject.

A token's signature is checked once. That its account and what proves it are still there is read again when
the last look is more than a second old, so a deleted key or a revoked session stops working within a second,
on every server.
"""

import json
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Store
from neocloud.services.iam.access.proof import Proven, find_subject
from neocloud.services.iam.access.recent import Recent
from neocloud.services.iam.access.static_keys import StaticKeys, is_static_token, key_id_in
from neocloud.services.iam.access.tokens import AccessClaims, Actor, find_signing_key, read_access_token

LOOK_AGAIN_SECONDS = 1.0


class StoreAuthenticator:
    """The Authenticator of core, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._static_keys = StaticKeys(store, clock)
        self._key: Ed25519PrivateKey | None = None
        self._claims: Recent[str, AccessClaims] = Recent(clock)
        self._proven: Recent[AccessClaims, Proven] = Recent(clock, max_age_seconds=LOOK_AGAIN_SECONDS)

    async def authenticate(self, token: str) -> Subject:
        if is_static_token(token):
            return await self._static_keys.authenticate(token)
        claims = await self.claims_of(token)
        proven = self._proven.get(claims)
        if proven is None:
            proven = await self._store.read(lambda tx: find_subject(tx, claims))
            if proven is not None:
                self._proven.put(claims, proven)
        if proven is None or (proven.ends_at and self._clock.now() >= proven.ends_at):
            raise contract.unauthenticated(
                "The account behind this access token, or the key or session it was got with, was deleted,"
                " deactivated, revoked or has expired. Sign in again."
            )
        return proven.subject

    async def proof_of(self, token: str) -> str:
        """What a token stands on: the id of its static key, or its claims. Of use without the token."""
        if is_static_token(token):
            return json.dumps({"static": key_id_in(token)})
        claims = await self.claims_of(token)
        actor = [claims.actor.id, claims.actor.proof_id] if claims.actor else None
        issued_at = claims.issued_at.isoformat()
        return json.dumps({"of": claims.subject_id, "by": claims.proof_id, "at": issued_at, "actor": actor})

    async def authenticate_proof(self, proof: str) -> Subject:
        """Return the subject that a proof stands for. Raises ApiError once it was revoked.

        Work that was started with a token may outlive the token and a session that expired. The text must
        come from `proof_of`.
        """
        said = json.loads(proof)
        if "static" in said:
            return await self._static_keys.authenticate_key(said["static"])
        issued_at = datetime.fromisoformat(said["at"])
        actor = Actor(*said["actor"]) if said["actor"] else None
        claims = AccessClaims(said["of"], said["by"], issued_at, issued_at, actor)
        proven = await self._store.read(lambda tx: find_subject(tx, claims))
        is_over = proven is not None and proven.ends_at is not None and self._clock.now() >= proven.ends_at
        if proven is None or (is_over and proven.subject.kind != "user"):
            raise contract.unauthenticated(
                "The account, or the key or session that this was started with, was deleted, deactivated or"
                " revoked."
            )
        return proven.subject

    async def claims_of(self, token: str) -> AccessClaims:
        """What a token of this cloud says, as long as it has not expired."""
        claims = self._claims.get(token)
        if claims is None:
            claims = read_access_token(token, await self._signing_key())
            self._claims.put(token, claims)
        if self._clock.now() >= claims.expires_at:
            raise contract.unauthenticated(
                f"The access token expired at {claims.expires_at:%Y-%m-%d %H:%M:%S} UTC. "
                "Sign in again, or exchange your service account key for a new one."
            )
        return claims

    async def _signing_key(self) -> Ed25519PrivateKey:
        if self._key is None:
            self._key = await self._store.read(find_signing_key)
        if self._key is None:
            raise contract.unauthenticated("This cloud has not issued any access token yet. Run `neo up`.")
        return self._key
