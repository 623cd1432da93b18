"""Every secret that the cloud makes or is given: shown in one answer, and nowhere else ever. IAM-06, IAM-07.

Looks at what is kept for long: operations, audit events, history, answers kept for retries, the log, and the
database file as it lies on disk.
"""

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from neocloud.core import contract
from neocloud.core.store import Transaction
from tests.fast.server.walk.cloud import WalkedCloud, walked_cloud

USERS = "neocloud.iam.v1.UserService"
STATIC_KEYS = "nebius.iam.v1.StaticKeyService"
OLD_KEYS, KEYS = "nebius.iam.v1.AccessKeyService", "nebius.iam.v2.AccessKeyService"
CHOSEN_PASSWORD = "correct-horse-battery-staple-4711"


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    async with walked_cloud(tmp_path, database=tmp_path / "state.db") as ready:
        yield ready


async def made(cloud: WalkedCloud, path: str, **fields: Any) -> Any:
    """The answer to a call of the victim's admin, with an idempotency key as SDKs send one."""
    rpc = contract.method(path)
    answer = await cloud.send(
        path, rpc.input(**fields), cloud.tokens["victim"], **{"x-idempotency-key": str(uuid4())}
    )
    assert answer.code == "OK", (path, answer.message)
    return rpc.output.FromString(answer.body)


async def make_secrets(cloud: WalkedCloud) -> list[str]:
    """One of each kind, each used in the ways that secrets are used."""
    project, tenant = {"parent_id": cloud.victim.ids["project"]}, cloud.victim.ids["tenant"]
    account = {"service_account": {"id": cloud.victim.ids["serviceaccount"]}}
    issued = await made(
        cloud, f"{STATIC_KEYS}/Issue", metadata=project, spec={"account": account, "service": 1}
    )
    await made(cloud, f"{STATIC_KEYS}/Find", token=issued.token)
    found = [issued.token, issued.token.rpartition("_")[2]]
    for mode, shown in (("INLINE", "Get"), ("EXPLICIT", "GetSecret"), ("UNSPECIFIED", "GetSecretOnce")):
        spec = {"account": account, "secret_delivery_mode": mode}
        key = await made(cloud, f"{KEYS}/Create", metadata=project, spec=spec)
        service = OLD_KEYS if shown == "GetSecretOnce" else KEYS
        answer = await made(cloud, f"{service}/{shown}", id=key.resource_id)
        found.append(answer.status.secret if shown == "Get" else answer.secret)
    user = await made(cloud, f"{USERS}/Create", parent_id=tenant, email="bob@bank.example")
    found.append(user.generated_password)
    await made(cloud, f"{USERS}/SetPassword", id=user.tenant_user_account_id, password=CHOSEN_PASSWORD)
    signed_in = await made(
        cloud,
        "neocloud.iam.v1.SignInService/WithPassword",
        email="bob@bank.example",
        password=CHOSEN_PASSWORD,
    )
    found += [CHOSEN_PASSWORD, signed_in.access_token, signed_in.refresh_token]
    await made(cloud, f"{STATIC_KEYS}/Revoke", token=issued.token)
    assert all(len(secret) >= 12 for secret in found)
    return [*found, *cloud.tokens.values()]


def everything_kept(tx: Transaction) -> dict[str, str]:
    """All that lasts and is not made to hold secrets."""
    return {
        "operations": repr(tx.list_operations()[0]),
        "audit": repr(tx.list_audit()[0]),
        "history": repr(tx.history()),
    }


async def test_no_secret_is_kept_where_it_can_be_read(
    cloud: WalkedCloud, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = await make_secrets(cloud)
    kept = await cloud.store.read(everything_kept)
    kept["log"] = caplog.text
    assert "StaticKeyService/Issue" in kept["operations"] and "StaticKeyService/Issue" in kept["audit"]
    leaks = [(place, secret[:6]) for place, text in kept.items() for secret in secrets if secret in text]
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert any(file.name == "state.db" for file in files)
    leaks += [
        (file.name, secret[:6])
        for file in files
        for secret in secrets
        if secret.encode() in file.read_bytes()
    ]
    assert not leaks


async def test_a_refusal_keeps_no_secret_either(cloud: WalkedCloud, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    token = cloud.victim.static_token
    rpc = contract.method(f"{STATIC_KEYS}/Find")
    for whose in ("outsider", "viewer"):
        await cloud.send(rpc.path, rpc.input(token=f"{token}wrong"), cloud.tokens[whose])
    kept = await cloud.store.read(everything_kept)
    secret = token.rpartition("_")[2]
    assert secret not in caplog.text + "".join(kept.values())
