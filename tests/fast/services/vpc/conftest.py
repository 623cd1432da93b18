"""A control plane with the real iam and vpc services over the fake engine, driven as a project's operator."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest
from nebius.aio.token.token import Token
from nebius.base.options import INSECURE
from nebius.base.resolver import Constant
from nebius.sdk import SDK

from neocloud.core import wire
from neocloud.core.clock import SystemClock
from neocloud.core.reconcile import Worker
from neocloud.core.service import Dependencies, backfill_defaults
from neocloud.core.store import Resource, Store, open_store
from neocloud.engines.fake import FakeEngine
from neocloud.engines.manifest import VirtualNetwork
from neocloud.server import ApiServer
from neocloud.services.iam import SERVICE as IAM
from neocloud.services.iam import Bootstrap, StoreAuthenticator, StoreAuthorizer, bootstrap
from neocloud.services.vpc import SERVICE as VPC
from neocloud.services.vpc import types as vpc
from neocloud.testing.waiting import until
from tests.fast.services.iam import keys

API = "nebius.vpc.v1"
SETTINGS: Any = SimpleNamespace(platform_services=("storage",))
"""What iam and vpc need."""


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

    @property
    def violations(self) -> dict[str, str]:
        """Why, by field."""
        found = {}
        for detail in self.body.get("details", []):
            bad_request = detail.get("debug", {}).get("badRequest", {})
            for violation in bad_request.get("violations", []):
                found[violation["field"]] = violation["message"]
        return found


@dataclass
class Cloud:
    store: Store
    engine: FakeEngine
    http: httpx.AsyncClient
    address: str
    bank: Bootstrap
    other: Bootstrap
    tokens: dict[str, str]

    async def call(self, path: str, body: Any, *, of: Bootstrap | None = None, api: str = API) -> Answer:
        """A JSON call as the operator of a bootstrap, the bank's unless another is given."""
        headers = {
            "content-type": "application/json",
            "authorization": f"Bearer {self.tokens[(of or self.bank).tenant_id]}",
        }
        answer = await self.http.post(f"/{api}.{path}", content=json.dumps(body), headers=headers)
        return Answer(answer.status_code, answer.json())

    async def create(self, kind: str, name: str, spec: Any, *, parent_id: str = "") -> Answer:
        metadata = {"parentId": parent_id or self.bank.project_id, "name": name}
        return await self.call(f"{kind}Service/Create", {"metadata": metadata, "spec": spec})

    async def made(self, kind: str, name: str, spec: Any, *, parent_id: str = "") -> str:
        """The id of a new resource, once its operation is done."""
        answer = await self.create(kind, name, spec, parent_id=parent_id)
        assert answer.status == 200, answer
        await self.until(lambda: self.is_done(answer.body["id"]))
        return answer.body["resourceId"]

    async def get(self, kind: str, resource_id: str) -> dict[str, Any]:
        answer = await self.call(f"{kind}Service/Get", {"id": resource_id})
        assert answer.status == 200, answer
        return answer.body

    async def update(self, kind: str, resource_id: str, spec: Any) -> Answer:
        return await self.call(f"{kind}Service/Update", {"metadata": {"id": resource_id}, "spec": spec})

    async def delete(self, kind: str, resource_id: str) -> Answer:
        return await self.call(f"{kind}Service/Delete", {"id": resource_id})

    async def only(self, kind: str, project_id: str = "") -> dict[str, Any]:
        """The one resource of the kind that the project has."""
        parent_id = project_id or self.bank.project_id
        [found] = (await self.call(f"{kind}Service/List", {"parentId": parent_id})).body["items"]
        return found

    async def row(self, resource_id: str) -> Resource | None:
        return await self.store.read(lambda tx: tx.get(resource_id))

    async def message(self, resource_id: str) -> Any:
        row = await self.row(resource_id)
        return None if row is None else wire.resource_message(row)

    async def is_done(self, operation_id: str) -> bool:
        row = await self.store.read(lambda tx: tx.get_operation(operation_id))
        return row is not None and row.code is not None

    async def is_gone(self, resource_id: str) -> bool:
        return await self.row(resource_id) is None

    async def until(self, condition: Callable[[], Awaitable[bool]]) -> None:
        await until(condition, poll_seconds=0.005)

    def applied(self, network_id: str) -> VirtualNetwork | None:
        """The network as the engine has it."""
        return self.engine.world.network(network_id)


async def token_of(http: httpx.AsyncClient, tenant: Bootstrap) -> str:
    subject = tenant.credentials["subject-credentials"]
    now = int(SystemClock().now().timestamp())
    claims = {"iss": subject["iss"], "sub": subject["sub"], "aud": "neocloud"}
    claims |= {"iat": now, "exp": now + 60}
    key = keys.signing_key(subject["private-key"])
    signed = jwt.encode(claims, key, algorithm=subject["alg"], headers={"kid": subject["kid"]})
    body = {
        "grantType": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requestedTokenType": "urn:ietf:params:oauth:token-type:access_token",
        "subjectToken": signed,
        "subjectTokenType": "urn:ietf:params:oauth:token-type:jwt",
    }
    answer = await http.post("/nebius.iam.v1.TokenExchangeService/Exchange", json=body)
    return answer.json()["accessToken"]


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    clock = SystemClock()
    store = await open_store(":memory:", b"k" * 32, clock)
    engine = FakeEngine(clock=clock)
    services = [IAM, VPC]
    dependencies = Dependencies(store, clock, engine=engine, settings=SETTINGS)
    bank = await bootstrap(store, clock, make_key=keys.rsa_key)
    other = await bootstrap(store, clock, tenant_name="other-bank", make_key=keys.other_rsa_key)
    await backfill_defaults(store, services, clock.now(), SETTINGS)
    worker = Worker(
        store,
        clock,
        list(VPC.reconcilers(dependencies)),
        kinds=[kind for service in services for kind in service.kinds],
        poll_seconds=0.05,
    )
    server = ApiServer(
        services,
        StoreAuthenticator(store, clock),
        StoreAuthorizer(store, clock),
        dependencies,
        notify=worker.notify,
    )
    await server.start()
    running = asyncio.create_task(worker.run())
    http = httpx.AsyncClient(base_url=f"http://{server.addresses.http}", trust_env=False, timeout=60)
    try:
        tokens = {tenant.tenant_id: await token_of(http, tenant) for tenant in (bank, other)}
        yield Cloud(store, engine, http, server.addresses.grpc, bank, other, tokens)
    finally:
        running.cancel()
        await asyncio.wait({running})
        await http.aclose()
        await server.stop(grace_seconds=0)
        await engine.close()
        await store.close()


@pytest.fixture
async def sdk(cloud: Cloud) -> AsyncIterator[SDK]:
    """The official client, signed in as the bank's operator."""
    made = SDK(
        resolver=Constant(cloud.address),
        options=[(INSECURE, True)],
        credentials=Token(cloud.tokens[cloud.bank.tenant_id]),
        user_agent_prefix="tests/1.0",
    )
    yield made
    await made.close()


@pytest.fixture
async def network_id(cloud: Cloud) -> str:
    return (await cloud.only("Network"))["metadata"]["id"]


@pytest.fixture
async def subnet_id(cloud: Cloud) -> str:
    return (await cloud.only("Subnet"))["metadata"]["id"]


__all__ = ["API", "Answer", "Cloud", "vpc"]
