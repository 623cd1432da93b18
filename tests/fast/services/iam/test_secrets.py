"""No secret of a sign-in is found in the database's files, the audit log, or the server's log. SEC-04."""

import logging
from pathlib import Path

import pytest
from pyotp.totp import TOTP

from tests.fast.services.iam import test_invitations, test_oidc
from tests.fast.services.iam.conftest import running_cloud
from tests.fast.services.iam.people import (
    ALICE,
    OWN_API,
    PASSWORD,
    make_user,
    refresh,
    sign_in,
    signed,
    try_password,
)
from tests.fast.services.iam.provider import CLIENT_SECRET, running_provider


async def test_nothing_that_opens_anything_is_written_down(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = {PASSWORD, CLIENT_SECRET, "a wrong password", "the next long password"}
    async with running_cloud(str(tmp_path / "state.db")) as cloud:
        with running_provider() as provider:
            account_id = await make_user(cloud)
            session = await sign_in(cloud)
            secrets |= {session.access, session.refresh}
            again = signed(await refresh(cloud, session.refresh))
            secrets |= {again.access, again.refresh}
            await try_password(cloud, ALICE, "a wrong password")
            body = {"currentPassword": PASSWORD}
            totp = await cloud.call("UserService/StartTotp", body, token=again.access, api=OWN_API)
            code = TOTP(totp.body["secret"]).at(cloud.clock.now())
            secrets.add(totp.body["secret"])
            confirm = {"totpCode": code}
            await cloud.call("UserService/ConfirmTotp", confirm, token=again.access, api=OWN_API)
            change = {"currentPassword": PASSWORD, "newPassword": "the next long password"}
            await cloud.call("UserService/ChangePassword", change, token=again.access, api=OWN_API)
            made = await cloud.call("UserService/SetPassword", {"id": account_id}, api=OWN_API)
            secrets.add(made.body["generatedPassword"])
            invitation_code = await test_invitations.code_of(
                cloud, await test_invitations.invite(cloud, "dora@bank.example")
            )
            secrets.add(invitation_code)
            accepted = signed(await test_invitations.accept(cloud, invitation_code))
            secrets |= {accepted.access, accepted.refresh}
            federation_id = await test_oidc.federate(cloud, provider)
            secret = {"id": federation_id, "clientSecret": CLIENT_SECRET}
            await cloud.call("OidcFederationService/SetClientSecret", secret, api=OWN_API)
            provider.wants_secret = True
            federated = await test_oidc.sign_in(cloud, federation_id)
            secrets |= {federated.access, federated.refresh}
            events, _ = await cloud.store.read(lambda tx: tx.list_audit())
            methods = {event.method.rpartition("/")[2] for event in events}
            assert {"WithPassword", "SetPassword", "AcceptInvitation", "FinishOidc"} <= methods
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir()) + caplog.text.encode()
    assert account_id.encode() in written
    found = [secret for secret in secrets if secret.encode() in written]
    assert not found


async def test_requests_are_recorded_without_their_secrets(tmp_path: Path) -> None:
    """Also not as a hash: a fast hash of a password can be tried out."""
    async with running_cloud(str(tmp_path / "state.db")) as cloud:
        body = {"parentId": cloud.bank.tenant_id, "email": ALICE, "password": PASSWORD}
        answers = []
        for password in (PASSWORD, "another long password"):
            headers = {
                "content-type": "application/json",
                "authorization": f"Bearer {await cloud.operator_token()}",
                "x-idempotency-key": "one-key",
            }
            path = f"/{OWN_API}.UserService/Create"
            answer = await cloud.http.post(path, json={**body, "password": password}, headers=headers)
            answers.append(answer.json())
        assert answers[0] == answers[1]
