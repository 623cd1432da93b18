"""AIS-01, AIS-04: `neo deploy` offers the cloud a GPU first, and takes a CPU where the machine has none."""

import json
from pathlib import Path

import pytest

from neocloud.client.profiles import Profile, Profiles, config_file, write_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer

INFERENCE = "neocloud.inference.v1"
MODEL_ID, DEPLOYMENT_ID = "inferencemodel-e00bank", "inferencedeployment-e00bank"
PLATFORMS = {"gpu-local": ("1gpu-4vcpu-16gb", 1), "cpu-local": ("2vcpu-8gb", 0)}


def operation() -> object:
    made = contract.message("nebius.common.v1.Operation")(id="operation-e00one", resource_id=DEPLOYMENT_ID)
    made.status.code = 0
    return made


@pytest.fixture
def machine(cloud: FakeServer) -> FakeServer:
    """Without GPUs; its catalogue lists them anyway."""
    model = contract.message(f"{INFERENCE}.Model")()
    model.metadata.id, model.metadata.name, model.metadata.parent_id = MODEL_ID, "bank", PROJECT
    model.status.size_bytes = 10**9
    cloud.serve(f"{INFERENCE}.ModelService/GetByName", model)
    listed = contract.method("nebius.compute.v1.PlatformService/List").output()
    for platform, (preset, gpus) in PLATFORMS.items():
        item = listed.items.add()
        item.metadata.name = platform
        shape = item.spec.presets.add(name=preset)
        shape.resources.gpu_count, shape.resources.memory_gibibytes = gpus, 16
    cloud.serve("nebius.compute.v1.PlatformService/List", listed)
    cloud.serve(f"{INFERENCE}.DeploymentService/Create", create)
    deployment = contract.message(f"{INFERENCE}.Deployment")()
    deployment.metadata.id, deployment.metadata.name = DEPLOYMENT_ID, "bank"
    cloud.serve(f"{INFERENCE}.DeploymentService/Get", deployment)
    return cloud


def create(request: object) -> object:
    spec = request.spec  # pyright: ignore[reportAttributeAccessIssue]
    if spec.platform == "gpu-local":
        raise contract.not_enough_resources(
            "compute.nodes", "1 x gpu-local", "This machine cannot hold 1 x gpu-local/1gpu-4vcpu-16gb."
        )
    return operation()


def asked(cloud: FakeServer) -> list[str]:
    return [request.spec.platform for request in cloud.asked(f"{INFERENCE}.DeploymentService/Create")]


def test_a_machine_without_gpus_serves_on_its_cpus(signed_in: Neo, machine: FakeServer) -> None:
    ran = signed_in("deploy", "bank", "--no-wait")
    assert ran.code == 0, ran.err
    assert asked(machine) == ["gpu-local", "cpu-local"]
    assert "cannot hold" not in ran.out + ran.err


def test_a_platform_that_was_asked_for_is_not_replaced(signed_in: Neo, machine: FakeServer) -> None:
    ran = signed_in("deploy", "bank", "--no-wait", "--platform", "gpu-local")
    assert ran.code != 0 and "cannot hold" in ran.err
    assert asked(machine) == ["gpu-local"]


def test_a_model_is_served_for_embeddings(signed_in: Neo, machine: FakeServer) -> None:
    assert signed_in("deploy", "bank", "--no-wait", "--task", "embed").code == 0
    spec = machine.asked(f"{INFERENCE}.DeploymentService/Create")[-1].spec
    assert type(spec).Task.Name(spec.task) == "EMBED"


@pytest.mark.parametrize(
    ("made_for", "task"), [("EMBED", "EMBED"), ("RERANK", "RERANK"), ("GENERATE", "GENERATE")]
)
def test_a_model_is_served_for_what_it_is_made_for(
    signed_in: Neo, machine: FakeServer, made_for: str, task: str
) -> None:
    model = contract.message(f"{INFERENCE}.Model")()
    model.metadata.id, model.metadata.name, model.metadata.parent_id = MODEL_ID, "bank", PROJECT
    model.status.task = type(model.status).Task.Value(made_for)
    machine.serve(f"{INFERENCE}.ModelService/GetByName", model)
    assert signed_in("deploy", "bank", "--no-wait", "--price", "0.02").code == 0
    spec = machine.asked(f"{INFERENCE}.DeploymentService/Create")[-1].spec
    assert type(spec).Task.Name(spec.task) == task
    assert (spec.price.input, spec.price.output) == ("0.02", "0.02" if task == "GENERATE" else "0")


def test_weights_of_fewer_bits_are_asked_for_and_their_quality_is_shown(
    signed_in: Neo, machine: FakeServer
) -> None:
    ran = signed_in("deploy", "bank", "--no-wait", "--weights", "int4", "--accept-lower-quality")
    assert ran.code == 0, ran.err
    spec = machine.asked(f"{INFERENCE}.DeploymentService/Create")[-1].spec
    assert type(spec).Weights.Name(spec.weights) == "INT4" and spec.accept_lower_quality

    deployment = contract.message(f"{INFERENCE}.Deployment")()
    deployment.metadata.id, deployment.metadata.name = DEPLOYMENT_ID, "bank"
    deployment.spec.weights = spec.weights
    found = deployment.status.weights_quality
    found.is_compared, found.percent, found.text = True, 98.76, "perplexity 20 to 20.25"
    found.size_bytes, found.original_bytes = 10**8, 3 * 10**8
    machine.serve(f"{INFERENCE}.DeploymentService/GetByName", deployment)
    shown = signed_in("deployment", "get", "bank").out
    assert "98.8 % of the original's quality (perplexity 20 to 20.25)" in " ".join(shown.split())


def test_a_deployment_on_a_cluster_names_its_worker(signed_in: Neo, machine: FakeServer) -> None:
    cluster = contract.message("neocloud.slurm.v1.Cluster")()
    cluster.metadata.id, cluster.metadata.name = "slurmcluster-e00lab", "lab"
    machine.serve("neocloud.slurm.v1.ClusterService/GetByName", cluster)
    ran = signed_in("deploy", "bank", "--no-wait", "--on-slurm", "lab", "--worker", "worker-4")
    assert ran.code == 0, ran.err
    spec = machine.asked(f"{INFERENCE}.DeploymentService/Create")[-1].spec
    assert (spec.slurm_cluster_id, spec.slurm_resources.worker) == ("slurmcluster-e00lab", "worker-4")


@pytest.mark.parametrize("given", [("--worker", "worker-4"), ("--memory", "4"), ("--gpus", "1")])
def test_resources_of_a_cluster_are_not_dropped_without_one(
    signed_in: Neo, machine: FakeServer, given: tuple[str, str]
) -> None:
    ran = signed_in("deploy", "bank", "--no-wait", *given)
    assert ran.code == 2 and "--on-slurm" in ran.err and given[0] in ran.err
    assert not asked(machine)


def test_an_emulator_says_that_it_takes_no_uploads(
    neo: Neo, machine: FakeServer, credentials_file: Path, tmp_path: Path
) -> None:
    home, data = tmp_path / "emulated", tmp_path / "chats.jsonl"
    home.mkdir()
    (home / "server.json").write_text('{"gateway": ""}')
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    data.write_text(json.dumps({"messages": turns}) + "\n")
    profile = Profile(
        "test", machine.endpoint, str(credentials_file), tenant_id=TENANT, project_id=PROJECT, home=str(home)
    )
    write_profiles(Profiles().with_profile(profile), config_file())
    for command in (("tune", str(data), "--base", "bank"), ("tco", "--measure", "bank")):
        ran = neo(*command)
        assert ran.code != 0 and "it is an emulator, which serves no models and accepts no files" in ran.err


def test_scale_sets_what_was_said_also_to_nothing(signed_in: Neo, machine: FakeServer) -> None:
    deployment = contract.message(f"{INFERENCE}.Deployment")()
    deployment.metadata.id, deployment.metadata.name = DEPLOYMENT_ID, "bank"
    machine.serve(f"{INFERENCE}.DeploymentService/GetByName", deployment)
    machine.serve(f"{INFERENCE}.DeploymentService/Update", operation())
    ran = signed_in("deployment", "scale", "bank", "0..4", "--idle", "600")
    assert ran.code == 0, ran.err
    assert "0 to 4 replicas" in ran.err
    [request] = machine.asked(f"{INFERENCE}.DeploymentService/Update")
    assert request.metadata.id == DEPLOYMENT_ID
    scaling = request.spec.scaling
    assert (scaling.min_replicas, scaling.max_replicas, scaling.idle_seconds) == (0, 4, 600)
    headers = machine.headers(f"{INFERENCE}.DeploymentService/Update")
    assert headers["x-resetmask"].split(",")[0] == "spec.scaling.min_replicas"
    assert signed_in("deployment", "scale", "bank", "many").code == 2


def test_delete_without_a_terminal_says_that_it_does_not_ask(signed_in: Neo, machine: FakeServer) -> None:
    deployment = contract.message(f"{INFERENCE}.Deployment")()
    deployment.metadata.id, deployment.metadata.name = DEPLOYMENT_ID, "bank"
    machine.serve(f"{INFERENCE}.DeploymentService/GetByName", deployment)
    machine.serve(f"{INFERENCE}.DeploymentService/Delete", operation())
    ran = signed_in("deployment", "delete", "bank")
    assert ran.code == 0, ran.err
    assert "Deleting deployment bank without asking" in ran.err and "Add --yes" in ran.err
    assert "without asking" not in signed_in("deployment", "delete", "bank", "--yes").err
