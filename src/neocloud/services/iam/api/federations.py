"""OIDC federations beyond the standard verbs: their client secret, switching them on and off."""

from dataclasses import replace
from typing import Any

from neocloud.core import contract
from neocloud.core.custom_verbs import done
from neocloud.core.service import Call
from neocloud.core.store.protocol import Resource, Transaction
from neocloud.messages.nebius.common.v1 import Operation
from neocloud.messages.neocloud.iam.v1 import (
    ActivateOidcFederationRequest,
    DeactivateOidcFederationRequest,
    OidcFederationStatus,
    SetClientSecretRequest,
    SetClientSecretResponse,
)
from neocloud.services.iam.api.oidc_sign_in import CLIENT_SECRET
from neocloud.services.iam.resources import OIDC_FEDERATION, State
from neocloud.services.iam.rules.federations import FederationState

SERVICE = "neocloud.iam.v1.OidcFederationService"


async def set_client_secret(call: Call, request: SetClientSecretRequest) -> SetClientSecretResponse:
    def change(tx: Transaction) -> None:
        tx.put_secret(_federation(tx, request.id).id, CLIENT_SECRET, request.client_secret.encode())

    await call.dependencies.store.write(change)
    return SetClientSecretResponse()


async def activate(call: Call, request: ActivateOidcFederationRequest) -> Operation:
    return await _switch(call, request, State.ACTIVE, "Activate")


async def deactivate(call: Call, request: DeactivateOidcFederationRequest) -> Operation:
    return await _switch(call, request, State.INACTIVE, "Deactivate")


async def _switch(call: Call, request: Any, state: State, verb: str) -> Any:
    def change(tx: Transaction) -> Any:
        row = _federation(tx, request.id)
        status = OidcFederationStatus(state=FederationState.Value(state)).SerializeToString()
        changed = replace(row, status=status, state=state, updated_at=call.dependencies.clock.now())
        tx.update(changed)
        return done(tx, call, request, changed, path=f"{SERVICE}/{verb}", title=f"federation {row.name}")

    return await call.dependencies.store.write(change)


def _federation(tx: Transaction, federation_id: str) -> Resource:
    row = tx.get(federation_id)
    if row is None or row.kind != OIDC_FEDERATION:
        raise contract.not_found("OIDC federation", federation_id)
    return row
