"""Reports to the gateway process, and to no other caller: AIS-05, AIS-08, IAM-02.

A real control plane and store around a fake engine of pods; calls carry the key from the state folder.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest
import pytest_asyncio
from neocloud.messages.neocloud.inference.v1 import ModelStatus

from neocloud.core import contract
from neocloud.data_plane.gateway_keys import KEY_HEADER, gateway_key_file
from neocloud.services.inference.public import Location
from neocloud.services.inference.reconcile.reader import FolderReader
from neocloud.services.inference.rules import scaling
from neocloud.services.inference.types import DEPLOYMENT
from neocloud.testing.waiting import until
from tests.fast.services.inference.cloud import (
    POD_SHAPE,
    FakeCloud,
    fake_cloud,
    write_adapter,
    write_model,
)

SERVICE = f"{FakeCloud.api}.GatewayService"
shared = pytest.mark.asyncio(loop_scope="module")
METHODS = ("Admit", "ListRoutes", "ReportTraffic", "ReportRelease", "IssueFileKey")
WAIT_SECONDS = 60


@pytest_asyncio.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path / "home") as running:
        yield running


@pytest_asyncio.fixture(scope="module")
async def refusing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FakeCloud]:
    """A cloud for requests that it refuses."""
    async with fake_cloud(tmp_path_factory.mktemp("refusing") / "home") as running:
        yield running


async def call(cloud: FakeCloud, path: str, request: Mapping[str, Any], **headers: str) -> Any:
    rpc = contract.method(path)
    stub = cloud.channel.unary_unary(
        f"/{path}",
        request_serializer=rpc.input.SerializeToString,
        response_deserializer=rpc.output.FromString,
    )
    metadata = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return await stub(
        contract.from_dict(rpc.input, dict(request)), metadata=metadata, timeout=WAIT_SECONDS + 10
    )


async def ask(cloud: FakeCloud, verb: str, **request: Any) -> Any:
    """Call as the gateway."""
    key = gateway_key_file(cloud.home).read_text().strip()
    return await call(cloud, f"{SERVICE}/{verb}", request, **{KEY_HEADER: key})


async def as_operator(cloud: FakeCloud, path: str, **request: Any) -> Any:
    return await call(cloud, path, request, authorization=f"Bearer {cloud.token}")


async def serve(cloud: FakeCloud, name: str = "bank", **spec: Any) -> tuple[str, str]:
    """Ids of a model and of its deployment."""
    folder = write_model(cloud.models / name)
    model_id = await cloud.create("Model", name, {"source": {"folder": str(folder)}, "license": "Apache-2.0"})
    await cloud.until(model_id, "READY")
    request = {"model_id": model_id, **POD_SHAPE, **spec}
    return model_id, await cloud.create("Deployment", name.replace(".", "-"), request)


async def static_key(cloud: FakeCloud, account_id: str) -> tuple[str, str]:
    """The id of a key of AI Studio, and its token."""
    issued = await as_operator(
        cloud,
        "nebius.iam.v1.StaticKeyService/Issue",
        metadata={"parent_id": cloud.project_id, "name": "studio"},
        spec={"account": {"service_account": {"id": account_id}}, "service": "AI_STUDIO"},
    )
    return issued.operation.resource_id, issued.token


# Who may ask


async def test_the_key_is_in_the_state_folder_for_its_owner_alone(cloud: FakeCloud) -> None:
    file = gateway_key_file(cloud.home)
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert len(file.read_text()) >= 32


@pytest.mark.parametrize("verb", METHODS)
@pytest.mark.parametrize("kind", ["nothing", "an admin's token", "a wrong key", "an empty key"])
@shared
async def test_nobody_but_the_gateway_may_ask(refusing: FakeCloud, verb: str, kind: str) -> None:
    headers = {
        "nothing": {},
        "an admin's token": {"authorization": f"Bearer {refusing.token}"},
        "a wrong key": {KEY_HEADER: "x" * 43},
        "an empty key": {KEY_HEADER: ""},
    }[kind]
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await call(refusing, f"{SERVICE}/{verb}", {}, **headers)
    assert refusal.value.code() is grpc.StatusCode.PERMISSION_DENIED


# Admit


async def test_an_access_token_says_who_calls_and_what_they_may_do_where(cloud: FakeCloud) -> None:
    answer = await ask(cloud, "Admit", token=cloud.token)
    assert (answer.subject_name, answer.tenant_id) == ("operator", cloud.running.first.tenant_id)
    assert answer.is_operator
    ends_at = datetime.fromtimestamp(jwt.decode(cloud.token, options={"verify_signature": False})["exp"], UTC)
    now = datetime.now(UTC)
    assert now < answer.renew_until.ToDatetime(UTC) <= min(ends_at, now + timedelta(hours=1))
    assert not (await ask(cloud, "Admit", proof=answer.proof)).HasField("renew_until")
    assert answer.home_project_id == cloud.project_id
    (grant,) = answer.grants
    assert (grant.project_id, grant.project_name) == (cloud.project_id, "default-eu-north1")
    assert {"inference.deployments.invoke", "inference.models.list", "tuning.fineTuningJobs.create"} <= {
        *grant.permissions
    }


async def test_a_static_key_may_do_what_its_account_may_until_it_is_revoked(cloud: FakeCloud) -> None:
    account = await as_operator(
        cloud,
        "nebius.iam.v1.ServiceAccountService/Create",
        metadata={"parent_id": cloud.project_id, "name": "app"},
        spec={},
    )
    key_id, token = await static_key(cloud, account.resource_id)
    nothing_yet = await ask(cloud, "Admit", token=token)
    assert not nothing_yet.is_operator
    assert (nothing_yet.subject_id, list(nothing_yet.grants)) == (account.resource_id, [])
    assert nothing_yet.home_project_id == cloud.project_id

    group = await as_operator(
        cloud,
        "nebius.iam.v1.GroupService/Create",
        metadata={"parent_id": cloud.running.first.tenant_id, "name": "apps"},
        spec={},
    )
    await as_operator(
        cloud,
        "nebius.iam.v1.AccessPermitService/Create",
        metadata={"parent_id": group.resource_id},
        spec={"resource_id": cloud.project_id, "role": "inference.user"},
    )
    await as_operator(
        cloud,
        "nebius.iam.v1.GroupMembershipService/Create",
        metadata={"parent_id": group.resource_id},
        spec={"member_id": account.resource_id},
    )
    (grant,) = (await ask(cloud, "Admit", token=token)).grants
    assert "inference.deployments.invoke" in grant.permissions
    assert "tuning.fineTuningJobs.create" not in grant.permissions

    await as_operator(cloud, "nebius.iam.v1.StaticKeyService/Delete", id=key_id)
    await until_refused(cloud, token)


async def until_refused(cloud: FakeCloud, token: str) -> None:
    """A token that was revoked is accepted for a second at most."""

    async def is_refused() -> bool:
        try:
            await ask(cloud, "Admit", token=token)
        except grpc.aio.AioRpcError as refusal:
            assert refusal.code() is grpc.StatusCode.UNAUTHENTICATED
            return True
        return False

    await until(is_refused, poll_seconds=0.05)


@pytest.mark.parametrize("token", ["", "garbage", "ncsk_statickey-e00nothing_0000"])
@shared
async def test_a_token_that_is_nobodys_is_told_apart_from_a_wrong_key(
    refusing: FakeCloud, token: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await ask(refusing, "Admit", token=token)
    assert refusal.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not token or token not in str(refusal.value.details())


# ListRoutes


async def test_a_route_has_all_that_a_request_needs(cloud: FakeCloud) -> None:
    model_id, deployment_id = await serve(
        cloud, scaling={"min_replicas": 1}, price={"input": "0.5", "output": "1"}
    )
    await cloud.until(deployment_id, "READY")
    (route,) = (await ask(cloud, "ListRoutes")).routes
    assert (route.deployment_id, route.project_id) == (deployment_id, cloud.project_id)
    assert route.tenant_id == cloud.running.first.tenant_id
    (model,) = route.models
    assert (model.name, model.engine_name, model.model_id) == ("bank", "bank", model_id)
    assert (model.project_id, model.license) == (cloud.project_id, "Apache-2.0")
    (replica,) = route.replicas
    assert replica.is_ready and replica.address.endswith(":8000")
    assert len(route.engine_key) >= 32 and route.context_length == 2048
    assert (route.limits.tokens_per_minute, route.limits.requests_per_minute) == (200_000, 0)
    assert (route.price.input, route.price.cached_input, route.price.output) == ("0.5", "", "1")


async def test_prices_and_limits_that_the_spec_leaves_open_are_the_price_lists(cloud: FakeCloud) -> None:
    """AIS-05, AIS-08."""
    await serve(cloud, "llama-3.1-405b")
    _, fast = await serve(cloud, "llama-3.1-8b", flavour="FAST", limits={"tokens_per_minute": 7})
    routes = {route.models[0].name: route for route in (await ask(cloud, "ListRoutes")).routes}
    large, small = routes["llama-3.1-405b"], routes["llama-3.1-8b-fast"]
    assert (large.price.input, large.price.output, large.limits.tokens_per_minute) == (
        "1.00",
        "3.00",
        100_000,
    )
    assert (small.price.input, small.price.output, small.limits.tokens_per_minute) == ("0.03", "0.09", 7)
    assert (small.deployment_id, small.models[0].engine_name) == (fast, "llama-3.1-8b-fast")


async def test_adapters_follow_their_model_and_say_where_they_are_loaded(cloud: FakeCloud) -> None:
    model_id, deployment_id = await serve(cloud, scaling={"min_replicas": 1}, max_adapters=2)
    await cloud.until(deployment_id, "READY")
    folder = write_adapter(cloud.models / "support")
    spec = {"source": {"folder": str(folder)}, "base_model_id": model_id}
    adapter_id = await cloud.create("Model", "support", spec)
    await cloud.when(deployment_id, lambda each: "support" in each.status.replicas[0].adapters)
    (route,) = (await ask(cloud, "ListRoutes")).routes
    assert [each.name for each in route.models] == ["bank", "support"]
    assert (route.models[1].model_id, route.models[1].parent_name) == (adapter_id, "bank")
    assert list(route.replicas[0].adapters) == ["support"]


async def test_an_adapter_that_becomes_ready_later_is_loaded_without_a_resync(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scaling, "LONGEST_RESYNC_SECONDS", 3600.0)
    monkeypatch.setattr(scaling, "QUIET_RESYNC_SECONDS", 3600.0)
    may_read, read = asyncio.Event(), FolderReader.read

    async def read_when_allowed(self: FolderReader, folder: Location, base: Location | None) -> ModelStatus:
        if base is not None:
            await may_read.wait()
        return await read(self, folder, base)

    monkeypatch.setattr(FolderReader, "read", read_when_allowed)
    model_id, deployment_id = await serve(cloud, scaling={"min_replicas": 1}, max_adapters=1)
    await cloud.until(deployment_id, "READY")
    spec = {"source": {"folder": str(write_adapter(cloud.models / "support"))}, "base_model_id": model_id}
    adapter_id = await cloud.create("Model", "support", spec)
    await cloud.when(model_id, lambda each: list(each.status.adapter_ids) == [adapter_id])
    long = timedelta(minutes=50)
    await until(
        lambda: cloud.running.store.read(lambda tx: tx.next_due([DEPLOYMENT])),
        "the run over the deployment",
        holds=lambda due: due is not None and due - datetime.now(UTC) > long,
    )
    may_read.set()
    await cloud.when(deployment_id, lambda each: "support" in each.status.replicas[0].adapters)


async def test_who_waits_for_routes_is_told_of_a_change_and_not_before(cloud: FakeCloud) -> None:
    first = await ask(cloud, "ListRoutes")
    assert first.version and not first.routes
    at_once = await ask(cloud, "ListRoutes", version=first.version, wait_seconds=0)
    assert at_once.version == first.version
    waiting = asyncio.create_task(ask(cloud, "ListRoutes", version=first.version, wait_seconds=WAIT_SECONDS))
    budget_id = await cloud.create("Budget", "november", {"monthly_limit": "250.00"})
    reported = await waiting
    assert reported.version != first.version
    assert [(each.project_id, each.monthly_limit) for each in reported.budgets] == [
        (cloud.project_id, "250.00")
    ]

    waiting = asyncio.create_task(
        ask(cloud, "ListRoutes", version=reported.version, wait_seconds=WAIT_SECONDS)
    )
    await cloud.call("BudgetService/Delete", {"id": budget_id})
    assert not (await waiting).budgets


async def test_who_waits_is_told_when_a_replica_is_ready(cloud: FakeCloud) -> None:
    """A state is written by a reconciler, past every request."""
    _, deployment_id = await serve(cloud, scaling={"min_replicas": 1})
    version = ""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            answer = await ask(cloud, "ListRoutes", version=version, wait_seconds=WAIT_SECONDS)
            assert answer.version != version
            version = answer.version
            if any(replica.is_ready for route in answer.routes for replica in route.replicas):
                return


async def test_a_wait_ends_without_news(cloud: FakeCloud) -> None:
    first = await ask(cloud, "ListRoutes")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    again = await ask(cloud, "ListRoutes", version=first.version, wait_seconds=1)
    assert again.version == first.version
    assert loop.time() - begin >= 0.9


# ReportTraffic, Wake


async def test_a_request_wakes_a_deployment_that_sleeps(cloud: FakeCloud) -> None:
    _, deployment_id = await serve(cloud, scaling={"max_replicas": 1, "idle_seconds": 60})
    await cloud.until(deployment_id, "ASLEEP")
    assert not cloud.pods(deployment_id)
    await ask(cloud, "ReportTraffic", items=[{"deployment_id": deployment_id, "waiting": 1}])
    await cloud.until(deployment_id, "READY")
    assert cloud.pods(deployment_id) == ["replica-0"]


async def test_more_requests_than_one_replica_takes_bring_another(cloud: FakeCloud) -> None:
    _, deployment_id = await serve(cloud, scaling={"min_replicas": 1, "max_replicas": 3}, max_concurrency=2)
    await cloud.until(deployment_id, "READY")
    await ask(cloud, "ReportTraffic", items=[{"deployment_id": deployment_id, "in_flight": 3}])
    await cloud.when(deployment_id, lambda each: len(each.status.replicas) == 2, "READY")


async def test_waking_by_name_starts_it_too(cloud: FakeCloud) -> None:
    _, deployment_id = await serve(cloud, scaling={"max_replicas": 1})
    await cloud.until(deployment_id, "ASLEEP")
    await cloud.call("DeploymentService/Wake", {"id": deployment_id})
    await cloud.until(deployment_id, "READY")


async def test_traffic_of_what_is_no_deployment_wakes_nothing(cloud: FakeCloud) -> None:
    items = [{"deployment_id": cloud.project_id, "waiting": 1}, {"deployment_id": "x", "waiting": 1}]
    await ask(cloud, "ReportTraffic", items=items)
    assert not cloud.engine.world.pods and not (await ask(cloud, "ListRoutes")).routes


# Budgets


async def test_a_budget_shows_what_is_spent(cloud: FakeCloud) -> None:
    budget_id = await cloud.create("Budget", "november", {"monthly_limit": "250"})
    budget = await cloud.call("BudgetService/Get", {"id": budget_id})
    assert (budget.spec.monthly_limit, budget.status.spent) == ("250", "0")
    listed = await cloud.call("BudgetService/List", {"parent_id": cloud.project_id})
    assert [each.status.spent for each in listed.items] == ["0"]


@pytest.mark.parametrize("limit", ["", "-1", "1e3", "lots", "1.1234567"])
@shared
async def test_a_limit_is_an_amount_of_money(refusing: FakeCloud, limit: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refusal:
        await refusing.create("Budget", "november", {"monthly_limit": limit})
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
