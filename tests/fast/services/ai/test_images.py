"""Endpoints and jobs that run images of registries: rights, what a tag stands for, what is refused, what is
removed. A real object gateway; the engine fetches nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import grpc
import pytest
import pytest_asyncio

from neocloud.core.clock import SystemClock
from neocloud.engines.images import PULLED, ImageTooLarge
from neocloud.services import iam
from neocloud.services.ai.rules import CAPACITY
from neocloud.services.iam.access.tokens import token_issuer
from neocloud.testing.waiting import until
from tests.control_plane import sign_in
from tests.fast.object_gateway.oci.client import CONFIG, LAYER, MANIFEST, descriptor
from tests.fast.services.ai.registry import RegistryCloud, registry_cloud
from tests.fast.services.iam import keys

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow]
JOBS = "nebius.ai.v1.JobService"
DAEMON = "serve --for ever"
"""No program that the fake engine knows, so it continues until somebody ends it."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cloud(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RegistryCloud]:
    """One for the module: tests leave no image and no fault."""
    async with registry_cloud(tmp_path_factory.mktemp("home")) as ready:
        await ready.registry()
        yield ready


async def token_of(cloud: RegistryCloud, account_id: str) -> str:
    token, _ = await token_issuer(cloud.running.store, SystemClock())(account_id, timedelta(hours=1))
    return token


def is_being_pulled(found: Any) -> bool:
    return "is being pulled" in found.status.state_details.message


async def refusal(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return str(refused.value.details())


async def test_a_job_runs_what_its_tag_was_for_when_it_began(cloud: RegistryCloud) -> None:
    first = await cloud.push_image("v1", "first")
    job = await cloud.job(":v1")
    code, message = await cloud.details(job, "COMPLETED")
    assert (code, message) == ("", f"The image {cloud.fqdn}/tool:v1 is {first}.")
    assert cloud.engine.world.images == {}, "nobody needs it any more"
    again = await cloud.push_image("v1", "second")
    await cloud.call(f"{JOBS}/Restart", id=job)
    _, message = await cloud.details(job, "COMPLETED")
    assert again in message
    pinned = await cloud.job(f"@{first}")
    assert await cloud.details(pinned, "COMPLETED") == ("", "")


async def test_attempts_and_restarts_by_the_cloud_run_the_same_image(cloud: RegistryCloud) -> None:
    first = await cloud.push_image("v1")
    job = await cloud.job(":v1", container_command=DAEMON, restart_attempts=1)
    other = await cloud.job(":v1", container_command=DAEMON)
    for each in (job, other):
        await cloud.until(each, "RUNNING")
    image = f"{PULLED}{cloud.project_id}:{first.removeprefix('sha256:')}"
    assert list(cloud.engine.world.images) == [image]
    await cloud.push_image("v1", "moved")
    before = cloud.pod(job)
    cloud.engine.kill(cloud.reference(job))
    await cloud.when(job, lambda found: "Attempt 1 failed" in found.status.state_details.message, "RUNNING")
    assert cloud.pod(job) is not before and cloud.container(job)["image"] == image
    await cloud.call(f"{JOBS}/Cancel", id=job)
    await cloud.until(job, "CANCELLED")
    assert list(cloud.engine.world.images) == [image], "the other job runs it"
    await cloud.call(f"{JOBS}/Delete", id=other)
    await cloud.gone(other)
    assert cloud.engine.world.images == {}


async def test_the_control_plane_pulls_as_the_account_that_asked(cloud: RegistryCloud) -> None:
    await cloud.push_image("v1")
    runner, group = await cloud.account("runner"), await cloud.group("runners")
    await cloud.join(runner, group)
    await cloud.permit(group, cloud.project_id, "ai.editor")
    token = await token_of(cloud, runner)
    assert "registry.images.pull" in await refusal(cloud.job(":v1", token))
    permit = await cloud.permit(group, cloud.registry_id, "container-registry.images.puller")
    job = await cloud.job(":v1", token)
    await cloud.until(job, "COMPLETED")
    await cloud.call("nebius.iam.v1.AccessPermitService/Delete", id=permit)
    await cloud.call(f"{JOBS}/Restart", id=job)
    code, message = await cloud.details(job, "ERROR")
    assert code == "ImageForbidden" and "Restore its right" in message
    kept = b"".join(path.read_bytes() for path in cloud.home.glob("*.db*"))
    assert b"NCTK" not in kept and "NCTK" not in repr(cloud.engine.world)


async def test_another_tenants_registry_is_as_if_it_were_not_there(cloud: RegistryCloud) -> None:
    await cloud.push_image("v1")
    store = cloud.running.store
    other = await iam.bootstrap(store, SystemClock(), tenant_name="other-bank", make_key=keys.other_rsa_key)
    thief = replace(cloud, token=await sign_in(cloud.channel, other.credentials))
    spec = {"image": f"{cloud.fqdn}/tool:v1", "platform": "cpu-local", "preset": "1vcpu-1gb"}
    metadata = {"parent_id": other.project_id, "name": "thief"}
    theirs = await refusal(thief.call(f"{JOBS}/Create", metadata=metadata, spec=spec))
    spec["image"] = f"{cloud.fqdn.partition('/')[0]}/e00nothing/tool:v1"
    nothing = await refusal(thief.call(f"{JOBS}/Create", metadata=metadata, spec=spec))
    assert theirs.replace(cloud.registry_id, "ID") == nothing.replace("registry-e00nothing", "ID")
    assert "There is no registry" in theirs


@pytest.mark.parametrize("image", ["", "/Tool:v1", "/tool:", "/tool@sha256:12", "/tool:v1 x", "/../x:v1"])
async def test_a_name_that_cannot_be_read_is_refused_with_words(cloud: RegistryCloud, image: str) -> None:
    spec = {"image": f"{cloud.fqdn}{image}", "platform": "cpu-local", "preset": "1vcpu-1gb"}
    metadata = {"parent_id": cloud.project_id, "name": "odd"}
    assert "cannot be read" in await refusal(cloud.call(f"{JOBS}/Create", metadata=metadata, spec=spec))


async def test_a_push_adds_what_was_missing(cloud: RegistryCloud) -> None:
    machine = "compute.instance.non-gpu.vcpu"
    before = await usage(cloud, machine)
    job = await cloud.job(":late")
    assert (await cloud.details(job, "ERROR"))[0] == "ImageMissing"
    assert await usage(cloud, machine) == before + 1, "a push starts it without a request"
    await cloud.push_image("late")
    await cloud.until(job, "COMPLETED")
    assert await usage(cloud, machine) == before


async def test_what_cannot_be_run_ends_with_words_and_a_retry_where_it_helps(cloud: RegistryCloud) -> None:
    missing = await cloud.job(":none")
    code, message = await cloud.details(missing, "ERROR")
    assert code == "ImageMissing" and "tool:none" in message
    digest = await cloud.push_image("other", architecture="s390x")
    await cloud.push_index("index", ("s390x", digest))
    for tag in ("other", "index"):
        code, message = await cloud.details(await cloud.job(f":{tag}"), "ERROR")
        assert code == "ImageUnusable" and "linux/s390x" in message, message
    config, layer = b"{}", b"outside"
    document = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(config, CONFIG),
        "layers": [descriptor(layer, LAYER, urls=["http://127.0.0.1:1/metadata"])],
    }
    await cloud.push("elsewhere", json.dumps(document).encode(), MANIFEST, config, layer)
    code, message = await cloud.details(await cloud.job(":elsewhere"), "ERROR")
    assert code == "ImageUnusable" and "are not fetched" in message
    await cloud.push_image("silent", config={})
    code, message = await cloud.details(await cloud.job(":silent"), "ERROR")
    assert code == "ImageUnusable" and "spec.container_command" in message
    cloud.engine.faults.pull_error = ImageTooLarge("The image does not fit in 1 GiB.")
    await cloud.push_image("none")
    await cloud.call(f"{JOBS}/Restart", id=missing)
    code, message = await cloud.details(missing, "ERROR")
    assert code == "ImageTooLarge" and "spec.disk.size_bytes" in message
    cloud.engine.faults.pull_error = None
    await cloud.call(f"{JOBS}/Restart", id=missing)
    await cloud.until(missing, "COMPLETED")


async def test_slow_pulls_hold_up_no_other_tenant_and_are_given_up(cloud: RegistryCloud) -> None:
    gate = cloud.engine.faults.pull_gate = asyncio.Event()
    await cloud.push_image("v1")
    slow = [await cloud.job(":v1") for _ in range(10)]
    for each in slow:
        await cloud.when(each, is_being_pulled, "PROVISIONING")
    local = await cloud.call(
        f"{JOBS}/Create",
        metadata={"parent_id": cloud.project_id, "name": "local"},
        spec={
            "image": "localhost/neocloud/tool:1",
            "container_command": "true",
            "platform": "cpu-local",
            "preset": "1vcpu-1gb",
        },
    )
    await cloud.until(local.resource_id, "COMPLETED")
    await cloud.call(f"{JOBS}/Delete", id=slow[0])
    await cloud.gone(slow[0])
    gate.set()
    cloud.engine.faults.pull_gate = None
    for each in slow[1:]:
        await cloud.until(each, "COMPLETED")
    assert cloud.engine.world.images == {}


async def test_a_job_whose_image_can_never_run_holds_nothing_of_the_machine(cloud: RegistryCloud) -> None:
    """It has ended: neither the machine nor the quota of its project counts it until somebody restarts it."""
    await cloud.push_image("unusable", config={})
    machine = "compute.instance.non-gpu.vcpu"
    before = await usage(cloud, machine)
    jobs = [await cloud.job(":unusable") for _ in range(3)]
    for job in jobs:
        assert (await cloud.details(job, "ERROR"))[0] == "ImageUnusable"
    rows = await cloud.running.store.read(lambda tx: {kind: tx.list(kind)[0] for kind in CAPACITY[0].kinds})
    assert not {holder for holder, _ in CAPACITY[0].demands(rows)} & set(jobs)
    await eventually_used(cloud, machine, before)
    await cloud.push_image("unusable")
    await cloud.call(f"{JOBS}/Restart", id=jobs[0])
    await cloud.until(jobs[0], "COMPLETED")
    await eventually_used(cloud, machine, before)


async def test_jobs_of_a_project_keep_to_its_quota_of_processors(cloud: RegistryCloud) -> None:
    machine = "compute.instance.non-gpu.vcpu"
    await cloud.push_image("v1")
    used = await usage(cloud, machine)
    spec, parent = {"limit": used + 1, "region": "eu-north1"}, {"parent_id": cloud.project_id}
    made = await cloud.call(
        "nebius.quotas.v1.QuotaAllowanceService/Create", metadata={**parent, "name": machine}, spec=spec
    )
    runs = await cloud.job(":v1", container_command=DAEMON)
    assert machine in await refusal(cloud.job(":v1"))
    await cloud.call(f"{JOBS}/Cancel", id=runs)
    await cloud.until(runs, "CANCELLED")
    ended = await cloud.job(":v1")
    await cloud.until(ended, "COMPLETED")
    holds = await cloud.job(":v1", container_command=DAEMON)
    assert machine in await refusal(cloud.call(f"{JOBS}/Restart", id=ended)), "a restart takes it again"
    await cloud.call(f"{JOBS}/Cancel", id=holds)
    await cloud.until(holds, "CANCELLED")
    await cloud.call("nebius.quotas.v1.QuotaAllowanceService/Delete", id=made.resource_id)


async def usage(cloud: RegistryCloud, quota: str) -> int:
    return (await cloud.running.store.read(lambda tx: tx.counters(cloud.project_id))).get(quota, 0)


async def eventually_used(cloud: RegistryCloud, quota: str, wanted: int) -> None:
    async def is_so() -> bool:
        return await usage(cloud, quota) == wanted

    await until(is_so)
