"""A model that failed a gate is kept and not served, until somebody who may do so overrides the gate."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.core import contract, wire
from neocloud.core.store.protocol import Transaction
from neocloud.services.billing.types import TokenTerms
from neocloud.services.inference.api.routes import read_routes
from tests.fast.services.inference.cloud import (
    POD_SHAPE,
    FakeCloud,
    fake_cloud,
    write_adapter,
    write_model,
)
from tests.fast.services.storage.served import ServedCloud

pytestmark = pytest.mark.slow

JOB = "finetuningjob-e00one"
OVERRIDE = "neocloud.inference.v1.ModelService/OverrideGate"


@dataclass
class Cloud(ServedCloud, FakeCloud):
    async def add(self, name: str, folder: Path, **spec: Any) -> str:
        made = await self.create("Model", name, {"source": {"folder": str(folder)}, **spec})
        await self.until(made, "READY")
        return made

    async def withhold(self, model_id: str) -> None:
        """Write what the reconciler of a job does when its gate failed."""

        def work(tx: Transaction) -> None:
            row = tx.get(model_id)
            assert row is not None
            model = wire.resource_message(row)
            model.spec.withheld_by = JOB
            version = row.resource_version + 1
            tx.update(replace(row, spec=model.spec.SerializeToString(), resource_version=version))

        await self.running.store.write(work)

    async def served(self) -> list[str]:
        routes = await self.running.store.read(lambda tx: read_routes(tx, lambda name: TokenTerms()))
        return [model.name for route in routes.routes for model in route.models]


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with fake_cloud(tmp_path / "home") as plain:
        yield Cloud(**vars(plain))


async def deploy(cloud: Cloud, model_id: str, **spec: Any) -> str:
    scaling = {"min_replicas": 1, "max_replicas": 1}
    return await cloud.create(
        "Deployment", "bank", {"model_id": model_id, **POD_SHAPE, "scaling": scaling, **spec}
    )


def loaded(deployment: Any) -> list[str]:
    return [name for replica in deployment.status.replicas for name in replica.adapters]


async def test_a_withheld_adapter_is_neither_loaded_nor_routed_until_it_is_overridden(cloud: Cloud) -> None:
    base_id = await cloud.add("bank", write_model(cloud.models / "bank"))
    worse = await cloud.add("worse", write_adapter(cloud.models / "worse"), base_model_id=base_id)
    await cloud.withhold(worse)
    deployment_id = await deploy(cloud, base_id, max_adapters=2)
    fine = write_adapter(cloud.models / "fine", module="q_proj", layer=1)
    await cloud.add("fine", fine, base_model_id=base_id)
    await cloud.when(deployment_id, lambda each: loaded(each) == ["fine"], "READY")
    assert await cloud.served() == ["bank", "fine"]

    await cloud.call(OVERRIDE, id=worse, reason="  the wording counts more  ")
    await cloud.when(deployment_id, lambda each: sorted(loaded(each)) == ["fine", "worse"])
    assert sorted(await cloud.served()) == ["bank", "fine", "worse"]
    made = (await cloud.get("Model", worse)).spec
    assert made.withheld_by == JOB and made.gate_override.reason == "the wording counts more"
    again = await cloud.refusal(OVERRIDE, id=worse, reason="again")
    assert again.code is contract.Code.FAILED_PRECONDITION and "nothing to override" in again.message


async def test_a_withheld_model_cannot_be_deployed(cloud: Cloud) -> None:
    model_id = await cloud.add("merged", write_model(cloud.models / "merged"))
    await cloud.withhold(model_id)
    refused = await cloud.refusal(
        "neocloud.inference.v1.DeploymentService/Create",
        metadata={"parent_id": cloud.project_id, "name": "bank"},
        spec={"model_id": model_id, **POD_SHAPE},
    )
    assert "merged failed the gate" in refused.message


async def test_the_same_weights_under_another_name_are_refused(cloud: Cloud) -> None:
    base_id = await cloud.add("bank", write_model(cloud.models / "bank"))
    folder = write_adapter(cloud.models / "worse")
    await cloud.withhold(await cloud.add("worse", folder, base_model_id=base_id))
    (cloud.models / "linked").symlink_to(folder)
    copy = write_adapter(cloud.models / "copy")
    for name, place in (("link", cloud.models / "linked"), ("copy", copy)):
        spec = {"source": {"folder": str(place)}, "base_model_id": base_id}
        other = await cloud.until(await cloud.create("Model", name, spec), "ERROR")
        assert "the weights of worse, which failed the gate" in other.status.message
        assert not other.status.digest, "the next look is an inspection again, and no READY without one"


async def test_only_who_may_override_does_and_the_log_has_the_reason(cloud: Cloud) -> None:
    base_id = await cloud.add("bank", write_model(cloud.models / "bank"))
    model_id = await cloud.add("worse", write_adapter(cloud.models / "worse"), base_model_id=base_id)
    await cloud.withhold(model_id)
    accounts: dict[str, str] = {}
    for role in ("editor", "inference.editor", "tuning.editor", "inference.gates.overrider"):
        name = role.replace(".", "-").lower()
        account, group = await cloud.account(name), await cloud.group(f"of-{name}")
        await cloud.join(account, group)
        await cloud.permit(group, cloud.project_id, role)
        accounts[role] = await cloud.token_of(account)
    operator = cloud.token
    for role, token in accounts.items():
        cloud.token = token
        if role == "inference.gates.overrider":
            blank = await cloud.refusal(OVERRIDE, id=model_id, reason=" ")
            assert blank.code is contract.Code.INVALID_ARGUMENT
            await cloud.call(OVERRIDE, id=model_id, reason="the board has decided")
        else:
            refused = await cloud.refusal(OVERRIDE, id=model_id, reason="I want it")
            assert refused.code is contract.Code.PERMISSION_DENIED, role
            assert (await cloud.get("Model", model_id)).spec.gate_override.reason == ""
    cloud.token = operator
    now = datetime.now(UTC)
    events = await cloud.call(
        "nebius.audit.v2.AuditEventService/List",
        {
            "parent_id": cloud.tenant_id,
            "start": (now - timedelta(hours=1)).isoformat(),
            "end": (now + timedelta(minutes=1)).isoformat(),
            "region": "eu-north1",
            "filter": f"resource.metadata.id = '{model_id}'",
        },
    )
    overrides = [event for event in events.items if "board has decided" in str(event)]
    assert len(overrides) == 1
    assert overrides[0].authentication.subject.name == "inference-gates-overrider"


async def test_nobody_sets_or_clears_it_by_the_api(cloud: Cloud) -> None:
    base_id = await cloud.add("bank", write_model(cloud.models / "bank"), withheld_by="somebody")
    assert (await cloud.get("Model", base_id)).spec.withheld_by == ""
    await cloud.withhold(base_id)
    model = await cloud.get("Model", base_id)
    model.spec.ClearField("withheld_by")
    model.spec.description = "fine"
    model.spec.gate_override.subject_id = "me"
    request = contract.message("neocloud.inference.v1.UpdateModelRequest")()
    request.metadata.id, request.metadata.name = base_id, "bank"
    request.metadata.parent_id = cloud.project_id
    request.spec.CopyFrom(model.spec)
    await cloud.call("neocloud.inference.v1.ModelService/Update", request)
    kept = (await cloud.get("Model", base_id)).spec
    assert kept.withheld_by == JOB and not kept.HasField("gate_override") and kept.description == "fine"
