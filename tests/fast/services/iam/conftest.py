"""A server on loopback with real iam and compute services, and two tenants that must not see each other."""

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import httpx
import jwt
import pytest
from argon2 import PasswordHasher

from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.core.service import register_services
from neocloud.core.store import Store, open_store
from neocloud.server import ApiServer
from neocloud.services.compute import SERVICE as COMPUTE
from neocloud.services.iam import SERVICE as IAM
from neocloud.services.iam import Bootstrap, StoreAuthenticator, StoreAuthorizer, bootstrap
from neocloud.services.iam.access.federation import Issuers
from neocloud.services.iam.access.outgoing import Outgoing
from neocloud.services.iam.access.passwords import PasswordChecker
from tests.control_plane import plain_dependencies
from tests.fast.services.iam import keys

IAM_API = "nebius.iam.v1"


class MovableClock(SystemClock):
    """The real clock, which a test can move on."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return super().now() + self.offset

    def monotonic(self) -> float:
        return super().monotonic() + self.offset.total_seconds()


@dataclass
class Answer:
    status: int
    body: dict[str, Any]

    @property
    def code(self) -> str:
        return self.body.get("code", "ok")

    @property
    def message(self) -> str:
        return self.body.get("message", "")


@dataclass
class Cloud:
    store: Store
    clock: MovableClock
    address: str
    http: httpx.AsyncClient
    bank: Bootstrap
    other: Bootstrap
    provided: ServiceRegistry
    """The registry of the running control plane."""
    tokens: dict[str, str] = field(default_factory=dict)

    def subject_token(self, credentials: Mapping[str, Any], **claims: Any) -> str:
        """Return the token that the SDKs sign, with `claims` in place of the usual ones."""
        subject = credentials["subject-credentials"]
        now = int(self.clock.now().timestamp())
        content = {
            "iss": subject["iss"],
            "sub": subject["sub"],
            "aud": "neocloud",
            "jti": secrets.token_hex(8),
        }
        content |= {"iat": now, "exp": now + 60, **claims}
        content = {name: value for name, value in content.items() if value is not None}
        headers = {"kid": subject["kid"]}
        key = keys.signing_key(subject["private-key"])
        return jwt.encode(content, key, algorithm=subject["alg"], headers=headers)

    async def exchange(self, subject_token: str, **fields: str) -> Answer:
        body = {
            "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
            "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
            "subjectToken": subject_token,
            "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
        } | fields
        return await self.call("TokenExchangeService/Exchange", body, token="")

    async def sign_in(self, credentials: Mapping[str, Any]) -> str:
        answer = await self.exchange(self.subject_token(credentials))
        assert answer.status == 200, answer
        return answer.body["accessToken"]

    async def operator_token(self) -> str:
        if "operator" not in self.tokens:
            self.tokens["operator"] = await self.sign_in(self.bank.credentials)
        return self.tokens["operator"]

    async def call(self, path: str, body: Any, *, token: str | None = None, api: str = IAM_API) -> Answer:
        """A JSON call, as the bank's operator unless another token is given."""
        token = await self.operator_token() if token is None else token
        headers = {"content-type": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {token}"
        answer = await self.http.post(f"/{api}.{path}", content=json.dumps(body), headers=headers)
        return Answer(answer.status_code, answer.json())

    async def made(self, path: str, body: Any) -> str:
        """The id of what a Create made."""
        answer = await self.call(path, body)
        assert answer.status == 200, answer
        return answer.body["resourceId"]

    async def group_id(self, name: str) -> str:
        found = await self.call("GroupService/GetByName", {"parentId": self.bank.tenant_id, "name": name})
        return found.body["metadata"]["id"]

    async def make_account(self, name: str) -> str:
        metadata = {"parentId": self.bank.project_id, "name": name}
        return await self.made("ServiceAccountService/Create", {"metadata": metadata, "spec": {}})

    async def make_key(self, account_id: str, public_pem: str) -> str:
        spec = {"account": {"serviceAccount": {"id": account_id}}, "data": public_pem}
        metadata = {"parentId": self.bank.project_id}
        return await self.made("AuthPublicKeyService/Create", {"metadata": metadata, "spec": spec})

    async def add_to(self, group: str, account_id: str) -> str:
        metadata, spec = {"parentId": await self.group_id(group)}, {"memberId": account_id}
        return await self.made("GroupMembershipService/Create", {"metadata": metadata, "spec": spec})


def direct_http() -> httpx.AsyncClient:
    """To a provider on loopback, whatever proxy the environment names."""
    return httpx.AsyncClient(timeout=60, trust_env=False)


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with running_cloud() as started:
        yield started


@asynccontextmanager
async def running_cloud(database: str = ":memory:") -> AsyncIterator[Cloud]:
    clock = MovableClock()
    store = await open_store(database, b"k" * 32, clock)
    provided = (
        ServiceRegistry()
        .add(Issuers, Issuers(clock, Outgoing(http=direct_http, allow_private=True)))
        .add(PasswordChecker, PasswordChecker(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)))
    )
    dependencies = plain_dependencies(store, clock, provided)
    register_services([IAM, COMPUTE], dependencies)
    server = ApiServer(
        [IAM, COMPUTE],
        StoreAuthenticator(store, clock),
        StoreAuthorizer(store, clock),
        dependencies,
    )
    await server.start()
    http = httpx.AsyncClient(base_url=f"http://{server.addresses.http}", trust_env=False, timeout=60)
    try:
        bank = await bootstrap(store, clock, make_key=keys.rsa_key)
        other = await bootstrap(store, clock, tenant_name="other-bank", make_key=keys.other_rsa_key)
        yield Cloud(store, clock, server.addresses.grpc, http, bank, other, provided)
    finally:
        await http.aclose()
        await server.stop(grace_seconds=0)
        await store.close()
