"""Answers to the object gateway about callers: the key of a signature, rights on a target, a token.

A signature of S3 is checked with a key that is derived from the secret for one day, one region and S3
(AWS Signature Version 4). The derived key alone leaves the control plane.
"""

import hmac
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from neocloud.core import contract
from neocloud.core.clock import Clock
from neocloud.core.readers import Subject
from neocloud.core.store.protocol import Store, Transaction
from neocloud.data_plane.access_keys import KeyLimit
from neocloud.messages.nebius.iam.v2 import AccessKeySpec
from neocloud.services.iam.access.account_keys import (
    SigningKey,
    find_signing_key,
    is_static_token,
)
from neocloud.services.iam.access.authentication import StoreAuthenticator, find_account
from neocloud.services.iam.access.authorization import refused
from neocloud.services.iam.access.temporary_keys import (
    LONGEST_LIFETIME,
    FoundKey,
    find_key,
    is_temporary,
    issue_key,
    issue_limited_key,
)
from neocloud.services.iam.access.tokens import issue, issue_for
from neocloud.services.iam.rules.roles import ROLES, allows
from neocloud.services.iam.types import GROUP_MEMBERSHIP, Signer, TemporaryKey

TOKEN_LIFETIME = timedelta(minutes=5)
MAX_SKEW = timedelta(days=8)
"""Presigned requests are valid for at most seven days after the day that they name."""
_DAY = re.compile(r"[0-9]{8}")
_REGION = re.compile(r"[a-z0-9-]{1,63}")


class StoreSignedRequests:
    """The SignedRequests of types.py, over the store."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._authenticator = StoreAuthenticator(store, clock)

    async def signer(self, aws_id: str, day: str, region: str) -> Signer | None:
        now = self._clock.now()
        if not _is_near(day, now) or not _REGION.fullmatch(region):
            return None

        def find(tx: Transaction) -> Signer | None:
            if is_temporary(aws_id):
                temporary = find_key(tx, aws_id, now)
                return None if temporary is None else _temporary_signer(tx, temporary, aws_id, day, region)
            found = find_signing_key(tx, aws_id, now)
            return None if found is None else _signer(tx, found, day, region)

        return await self._store.read(find)

    async def rights(self, subject_id: str, permissions: Sequence[str], target_id: str) -> tuple[str, ...]:
        def find(tx: Transaction) -> tuple[str, ...]:
            subject = find_account(tx, subject_id)
            if subject is None:
                return ()
            return tuple(each for each in permissions if refused(tx, subject, each, target_id) is None)

        return await self._store.read(find)

    async def rights_of(
        self, subject: Subject, permissions: Sequence[str], target_id: str
    ) -> tuple[str, ...]:
        return await self._store.read(
            lambda tx: tuple(each for each in permissions if refused(tx, subject, each, target_id) is None)
        )

    async def token(self, aws_id: str) -> tuple[str, datetime] | None:
        now = self._clock.now()
        if is_temporary(aws_id):
            return await self._token_of_temporary(aws_id, now)
        found = await self._store.read(lambda tx: find_signing_key(tx, aws_id, now))
        if found is None:
            return None
        token = await issue(self._store, now, found.subject.id, found.key.id, lifetime=TOKEN_LIFETIME)
        return token.value, token.expires_at

    async def _token_of_temporary(self, aws_id: str, now: datetime) -> tuple[str, datetime] | None:
        found = await self._store.read(lambda tx: find_key(tx, aws_id, now))
        if found is None or found.claims is None:
            return None
        expires_at = min(now + TOKEN_LIFETIME, found.expires_at)
        # With the time of the sign-in: tokens that are older than a revocation are worthless.
        token = await issue_for(self._store, replace(found.claims, expires_at=expires_at))
        return token.value, token.expires_at

    async def issue(self, token: str, project_id: str, lifetime: timedelta) -> TemporaryKey:
        if is_static_token(token):
            raise contract.permission_denied(
                "", project_id, "A static key is for one service alone, and cannot get other keys."
            )
        claims = await self._authenticator.claims_of(token)
        if not timedelta() < lifetime <= LONGEST_LIFETIME:
            raise contract.bad_field("lifetime", "must be between a minute and 7 days")
        expires_at = self._clock.now() + lifetime
        if claims.actor is not None or claims.credential_id in ("", claims.subject_id):
            # No credential that can be revoked alone is behind it, so the key does not outlive the token.
            expires_at = min(expires_at, claims.expires_at)
        return await self._store.write(lambda tx: issue_key(tx, claims, project_id, expires_at))

    async def limited_key(
        self, account_id: str, project_id: str, limit: KeyLimit, lifetime: timedelta
    ) -> TemporaryKey:
        now = self._clock.now()
        return await self._store.write(
            lambda tx: issue_limited_key(tx, account_id, project_id, limit, now, now + lifetime)
        )

    def refusal(
        self, tx: Transaction, subject: Subject, permission: str, target_id: str
    ) -> contract.ApiError | None:
        return refused(tx, subject, permission, target_id)

    def account_has(self, tx: Transaction, account_id: str, permission: str, target_id: str) -> bool:
        subject = find_account(tx, account_id)
        return (
            subject is not None and refused(tx, replace(subject, scopes=None), permission, target_id) is None
        )

    def is_allowed(self, role: str, permission: str) -> bool:
        return role in ROLES and allows(role, permission)


def derived_key(secret: str, day: str, region: str) -> bytes:
    """Return the signing key of AWS Signature Version 4 for S3."""
    key = f"AWS4{secret}".encode()
    for part in (day, region, "s3", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _is_near(day: str, now: datetime) -> bool:
    """Return whether a request of this day may be valid now. The keys of other days stay here."""
    if not _DAY.fullmatch(day):
        return False
    try:
        named = datetime(int(day[:4]), int(day[4:6]), int(day[6:]), tzinfo=now.tzinfo)
    except ValueError:
        return False
    return -timedelta(days=1) <= now - named <= MAX_SKEW


def _temporary_signer(tx: Transaction, found: FoundKey, aws_id: str, day: str, region: str) -> Signer:
    return Signer(
        subject=found.subject,
        access_key_id=aws_id,
        signing_key=derived_key(found.secret, day, region),
        project_id=found.project_id,
        group_ids=_groups(tx, found.subject.id),
        expires_at=found.expires_at,
        limit=found.limit,
    )


def _groups(tx: Transaction, subject_id: str) -> tuple[str, ...]:
    return tuple(sorted(each.parent_id for each in tx.owned(subject_id) if each.kind == GROUP_MEMBERSHIP))


def _signer(tx: Transaction, found: SigningKey, day: str, region: str) -> Signer:
    spec = AccessKeySpec.FromString(found.key.spec)
    return Signer(
        subject=found.subject,
        access_key_id=found.key.id,
        signing_key=derived_key(found.secret, day, region),
        project_id=found.project_id,
        group_ids=_groups(tx, found.subject.id),
        expires_at=contract.to_datetime(spec.expires_at) if spec.HasField("expires_at") else None,
    )
