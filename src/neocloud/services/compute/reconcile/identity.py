"""The token for programs in a guest: of the instance's service account, renewed while it runs."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from neocloud.core.clock import Clock
from neocloud.core.contract import ApiError
from neocloud.core.reconcile.reconciler import Failed
from neocloud.core.service import Dependencies
from neocloud.engines.manifest import Secret
from neocloud.services.compute.reconcile.machine_scope import MachineScope
from neocloud.services.compute.render import identity_secret
from neocloud.services.compute.types import InstanceReason
from neocloud.services.iam.public import TokenIssuer

LIFETIME = timedelta(hours=1)
RENEW_BEFORE = timedelta(minutes=20)


class IdentityTokens:
    """Tokens by instance, kept in memory: after a restart each gets a fresh one."""

    def __init__(self, issue: TokenIssuer | None, clock: Clock) -> None:
        self._issue = issue
        self._clock = clock
        self._held: dict[str, tuple[str, datetime]] = {}

    @classmethod
    def of(cls, dependencies: Dependencies) -> "IdentityTokens":
        return cls(dependencies.provided.find(TokenIssuer), dependencies.clock)

    async def objects(self, scope: MachineScope) -> Sequence[Secret]:
        account_id = scope.instance.spec.service_account_id
        if not account_id or self._issue is None:
            return ()
        held = self._held.get(scope.id)
        if held is None or held[1] - self._clock.now() < RENEW_BEFORE:
            try:
                held = self._held[scope.id] = await self._issue(account_id, LIFETIME)
            except ApiError as error:
                raise Failed(InstanceReason.IDENTITY_FAILED, error.message) from error
        token, expires_at = held
        return [identity_secret(scope.id, token, expires_at.isoformat().replace("+00:00", "Z"))]
