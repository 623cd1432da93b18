"""The token exchange as a form, as OAuth libraries call it."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from neocloud.core import contract
from neocloud.core.service import Method, Service
from neocloud.server import ApiServer
from tests.control_plane import plain_dependencies
from tests.fast.server.conftest import Cloud, PermissionTable, TokenTable

GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"


async def exchange(call: Any, request: Any) -> Any:
    assert call.subject is None
    if request.subject_token != "good":
        raise contract.unauthenticated("The subject token is not valid. Make a new one.")
    answer = contract.message("nebius.iam.v1.CreateTokenResponse")
    return answer(access_token="granted", token_type="Bearer", expires_in=3600)


@pytest.fixture
async def form(cloud: Cloud) -> AsyncIterator[httpx.AsyncClient]:
    method = Method("nebius.iam.v1.TokenExchangeService/Exchange", exchange, permission=None)
    dependencies = plain_dependencies(cloud.store, cloud.clock)
    server = ApiServer([Service("iam", methods=(method,))], TokenTable(), PermissionTable(), dependencies)
    await server.start()
    try:
        async with httpx.AsyncClient(
            base_url=f"http://{server.addresses.http}", trust_env=False, timeout=60
        ) as client:
            yield client
    finally:
        await server.stop(grace_seconds=0)


async def test_a_form_is_exchanged_for_a_token(form: httpx.AsyncClient) -> None:
    data = {"grant_type": GRANT, "subject_token": "good", "unknown_parameter": "ignored"}
    answer = await form.post("/oauth2/token/exchange", data=data)
    assert answer.status_code == 200
    assert answer.json() == {"access_token": "granted", "token_type": "Bearer", "expires_in": 3600}
    assert answer.headers["cache-control"] == "no-store"


async def test_a_bad_grant_is_told_in_oauths_words(form: httpx.AsyncClient) -> None:
    answer = await form.post("/oauth2/token/exchange", data={"grant_type": GRANT, "subject_token": "forged"})
    assert answer.status_code == 400
    assert answer.json()["error"] == "invalid_grant"
    assert "Make a new one" in answer.json()["error_description"]


@pytest.mark.parametrize("body", [b"", b"\xff", b"no form", b"a=" + b"b" * 70_000])
async def test_a_body_that_is_no_form_is_an_invalid_request(form: httpx.AsyncClient, body: bytes) -> None:
    answer = await form.post("/oauth2/token/exchange", content=body)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_request")
