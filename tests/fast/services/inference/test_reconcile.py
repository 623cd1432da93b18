"""Models and deployments from spec to status, on a fake engine of pods (AIS-04, AIS-16).

What a replica's engine says over HTTP is `test_engine_client`'s; here it is pretended.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from neocloud.messages.neocloud.inference.v1 import Replica

from neocloud.core.contract import Code
from neocloud.engines.base import Reference
from neocloud.services.inference.types import REPLICA_RESERVATION
from tests.fast.services.inference.cloud import POD_SHAPE, FakeCloud, fake_cloud, write_adapter, write_model

ONE = {"min_replicas": 1}


@pytest_asyncio.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[FakeCloud]:
    async with fake_cloud(tmp_path / "home") as running:
        yield running


async def add_model(cloud: FakeCloud, name: str = "bank") -> str:
    folder = write_model(cloud.models / name)
    model_id = await cloud.create("Model", name, {"source": {"folder": str(folder)}})
    await cloud.until(model_id, "READY")
    return model_id


async def add_adapter(cloud: FakeCloud, name: str, base_id: str) -> str:
    folder = write_adapter(cloud.models / name)
    spec = {"source": {"folder": str(folder)}, "base_model_id": base_id}
    adapter_id = await cloud.create("Model", name, spec)
    await cloud.until(adapter_id, "READY")
    return adapter_id


async def deploy(cloud: FakeCloud, model_id: str, name: str = "bank", **spec) -> str:
    request = {"model_id": model_id, **POD_SHAPE, "scaling": ONE, **spec}
    return await cloud.create("Deployment", name, request)


async def test_a_folder_becomes_a_model(cloud: FakeCloud) -> None:
    model = await cloud.until(await add_model(cloud), "READY")
    assert model.status.architecture == "Qwen3ForCausalLM"
    assert model.status.kv_bytes_per_token == 2 * 2 * 1 * 4 * 2
    assert model.status.parameters == 2 * 64 + 32 * 8
    assert model.status.has_chat_template and len(model.status.digest) == 64


TOKENIZER = "neocloud.inference.v1.ModelService/ReadTokenizer"


async def test_the_tokenizer_of_a_model_is_read_without_its_weights(cloud: FakeCloud) -> None:
    model_id = await add_model(cloud)
    (cloud.models / "bank" / "chat_template.jinja").write_text("{{ messages }}")
    answer = await cloud.call(TOKENIZER, id=model_id)
    files = {each.name: each.content for each in answer.files}
    assert files["chat_template.jinja"] == b"{{ messages }}" and "tokenizer.json" in files
    assert not any(name.endswith(".safetensors") for name in files)


async def test_a_tokenizer_that_cannot_be_read_says_why(cloud: FakeCloud, tmp_path: Path) -> None:
    """No link out of the folder is followed, and a file that is too large is not read."""
    model_id = await add_model(cloud)
    adapter = await cloud.refusal(TOKENIZER, id=await add_adapter(cloud, "adapter", model_id))
    assert adapter.code is Code.FAILED_PRECONDITION and f"its base {model_id}" in str(adapter)
    file = cloud.models / "bank" / "chat_template.jinja"
    (tmp_path / "secret").write_text("secret")
    file.unlink(missing_ok=True)
    file.symlink_to(tmp_path / "secret")
    answer = await cloud.call(TOKENIZER, id=model_id)
    assert "chat_template.jinja" not in {each.name for each in answer.files}
    file.unlink()
    with file.open("wb") as large:
        large.truncate(1 << 40)
    refused = await cloud.refusal(TOKENIZER, id=model_id)
    assert refused.code is Code.FAILED_PRECONDITION and "is larger than" in str(refused)
    assert (await cloud.refusal(TOKENIZER, id="inferencemodel-e00nobody")).code is Code.NOT_FOUND


async def test_a_folder_that_is_no_model_says_what_is_missing_and_is_looked_at_again(
    cloud: FakeCloud,
) -> None:
    folder = cloud.models / "empty"
    folder.mkdir()
    model_id = await cloud.create("Model", "empty", {"source": {"folder": str(folder)}})
    model = await cloud.until(model_id, "ERROR")
    assert "has no config.json" in model.status.message


async def test_a_deployment_answers(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud))
    deployment = await cloud.until(deployment_id, "READY")
    (replica,) = deployment.status.replicas
    assert replica.state == Replica.READY and replica.address.endswith(":8000")
    assert list(deployment.status.served_names) == ["bank"]
    assert "GiB" in deployment.status.memory and deployment.status.context_length == 2048
    assert deployment.status.start_seconds >= 1
    assert cloud.engines.warmed == [(replica.address, "bank")]


async def test_the_log_of_a_replica_is_followed_over_restarts(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud))
    await cloud.until(deployment_id, "READY")
    service = "neocloud.inference.v1.DeploymentService"
    replica = Reference("Pod", deployment_id, "replica-0")

    def container() -> Any:
        return cloud.engine.world.pods[replica].container(None)

    async def read(after: str = "") -> Any:
        return await cloud.call(f"{service}/ReadLog", id=deployment_id, after=after, lines=1)

    container().logs[:] = ["loading", "loaded"]
    first = await read()
    assert first.text == "loaded" and first.run and first.next_position
    container().logs += ["request 1", "request 2"]
    second = await read(first.next_position)
    assert (second.text, second.run) == ("request 1\nrequest 2\n", first.run)
    assert (await read(second.next_position)).text == ""
    container().restart_count += 1
    container().logs[:] = ["loading again", "loaded", "ready", "served", "more"]
    third = await read(second.next_position)
    assert third.text.splitlines()[0] == "loading again" and third.run not in ("", first.run)
    other = third.next_position.replace("replica-0", "replica-7")
    assert (await read(other)).text == "more", "the position of another replica is none in this one"
    for forged in ("x", "replica-0/1", "replica-0/1/-1", "../../0/1/2", "\0", f"replica-0/1/{'9' * 19}"):
        refused = await cloud.refusal(f"{service}/ReadLog", id=deployment_id, after=forged)
        assert refused.code is Code.INVALID_ARGUMENT


async def test_names_of_the_fast_flavour_say_so(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud), flavour="FAST")
    deployment = await cloud.until(deployment_id, "READY")
    assert list(deployment.status.served_names) == ["bank-fast"]
    arguments = cloud.pod(deployment_id).manifest.containers[0].args
    assert arguments[arguments.index("--served-model-name") + 1] == "bank-fast"


async def test_nothing_runs_while_nobody_asks(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud), scaling={"max_replicas": 1})
    await cloud.until(deployment_id, "ASLEEP")
    assert cloud.pods(deployment_id) == []
    await cloud.call("DeploymentService/Wake", {"id": deployment_id})
    await cloud.until(deployment_id, "READY")
    assert cloud.pods(deployment_id) == ["replica-0"]


async def test_adapters_come_and_go_without_a_new_pod(cloud: FakeCloud) -> None:
    base_id = await add_model(cloud)
    deployment_id = await deploy(cloud, base_id, max_adapters=2)
    deployment = await cloud.until(deployment_id, "READY")
    (replica,), pod = deployment.status.replicas, cloud.pod(deployment_id)
    adapter_id = await add_adapter(cloud, "support", base_id)

    await cloud.when(deployment_id, lambda each: adapters(each) == ["support"])
    assert cloud.engines.loaded[replica.address] == {"support"}
    assert (cloud.home / "models" / deployment_id / adapter_id / "adapter_model.safetensors").is_file()

    await cloud.call("ModelService/Delete", {"id": adapter_id})
    await cloud.when(deployment_id, lambda each: each.status.replicas and not adapters(each))
    assert cloud.engines.loaded[replica.address] == set()
    assert cloud.pod(deployment_id) is pod


async def test_an_adapter_that_an_engine_refuses_is_told_and_the_rest_is_served(cloud: FakeCloud) -> None:
    base_id = await add_model(cloud)
    cloud.engines.refused.add("broken")
    deployment_id = await deploy(cloud, base_id, max_adapters=2)
    await cloud.until(deployment_id, "READY")
    await add_adapter(cloud, "broken", base_id)
    await add_adapter(cloud, "support", base_id)
    seen = await cloud.when(deployment_id, lambda each: adapters(each) == ["support"])
    assert "broken was not loaded: no such file" in seen.status.replicas[0].message
    assert dict(seen.status.replicas[0].adapter_errors) == {"broken": "no such file"}


def adapters(deployment: Any) -> list[str]:
    """Return the adapters of its replicas; none before the first is there."""
    return [name for replica in deployment.status.replicas for name in replica.adapters]


def restarts(deployment: Any) -> list[int]:
    return [replica.restarts for replica in deployment.status.replicas]


async def test_an_engine_that_dies_comes_back_with_its_adapters(cloud: FakeCloud) -> None:
    base_id = await add_model(cloud)
    deployment_id = await deploy(cloud, base_id, max_adapters=2)
    await add_adapter(cloud, "support", base_id)
    before = await cloud.when(deployment_id, lambda each: adapters(each) == ["support"])
    cloud.engines.loaded.clear()
    cloud.engine.kill(Reference("Pod", deployment_id, "replica-0"))
    after = await cloud.when(
        deployment_id,
        lambda each: adapters(each) == ["support"] and each.status.replicas[0].restarts == 1,
    )
    assert after.status.replicas[0].state == Replica.READY
    assert cloud.engines.loaded[before.status.replicas[0].address] == {"support"}


async def test_a_missing_pod_is_made_again(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud))
    await cloud.until(deployment_id, "READY")
    cloud.engine.lose(Reference("Pod", deployment_id, "replica-0"))
    cloud.running.worker.enqueue(deployment_id)
    await cloud.when(deployment_id, lambda each: restarts(each) == [1], "READY")


async def test_scaling_by_the_spec(cloud: FakeCloud) -> None:
    deployment_id = await deploy(cloud, await add_model(cloud), scaling={"min_replicas": 2})
    await cloud.when(deployment_id, lambda each: len(each.status.replicas) == 2, "READY")
    assert cloud.pods(deployment_id) == ["replica-0", "replica-1"]


async def test_a_deleted_deployment_leaves_nothing(cloud: FakeCloud) -> None:
    base_id = await add_model(cloud)
    deployment_id = await deploy(cloud, base_id, max_adapters=1)
    await cloud.until(deployment_id, "READY")
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await cloud.call("ModelService/Delete", {"id": base_id})
    assert "served by bank" in str(refused.value.details())
    await cloud.call("DeploymentService/Delete", {"id": deployment_id})
    await cloud.gone(deployment_id)
    assert not cloud.pods(deployment_id) and deployment_id not in cloud.engine.world.namespaces
    assert not (cloud.home / "models" / deployment_id).exists()
    reserved = await cloud.running.store.read(lambda tx: tx.list(REPLICA_RESERVATION)[0])
    assert reserved == []
    await cloud.call("ModelService/Delete", {"id": base_id})
    await cloud.gone(base_id)
    assert (cloud.models / "bank" / "config.json").is_file()  # the operator's, not a copy


async def test_a_copy_goes_with_its_model(cloud: FakeCloud) -> None:
    folder = write_model(cloud.home / "models" / cloud.project_id / "mine")
    model_id = await cloud.create("Model", "mine", {"source": {"folder": str(folder)}})
    await cloud.until(model_id, "READY")
    await cloud.call("ModelService/Delete", {"id": model_id})
    await cloud.gone(model_id)
    assert not folder.exists()
