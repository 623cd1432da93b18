"""Models on the emulator: any folder is one, deployments become READY, and nothing answers (AIS-16)."""

from neocloud.testing.emulator import Emulator

INFERENCE = "neocloud.inference.v1"


def test_a_model_is_deployed_and_deleted(neocloud_emulator: Emulator, new_name) -> None:
    name, client = new_name(), neocloud_emulator.client
    metadata = {"parent_id": neocloud_emulator.project_id, "name": name}
    source = {"hub": {"id": "Qwen/Qwen3-0.6B"}}
    model = client.wait(
        client.call(f"{INFERENCE}.ModelService/Create", {"metadata": metadata, "spec": {"source": source}})
    )
    spec = {
        "model_id": model.resource_id,
        "platform": "gpu-h100-sxm",
        "preset": "1gpu-16vcpu-200gb",
        "scaling": {"min_replicas": 1},
    }
    made = client.wait(
        client.call(f"{INFERENCE}.DeploymentService/Create", {"metadata": metadata, "spec": spec})
    )
    found = client.call(f"{INFERENCE}.DeploymentService/Get", {"id": made.resource_id})
    assert found.status.state == found.status.READY and list(found.status.served_names) == [name]
    client.wait(client.call(f"{INFERENCE}.DeploymentService/Delete", {"id": made.resource_id}))
    client.wait(client.call(f"{INFERENCE}.ModelService/Delete", {"id": model.resource_id}))
