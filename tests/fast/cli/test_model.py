"""`neo model add` of an adapter: it can be called once the command ends, where a deployment takes it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.inference import model as command
from neocloud.cli.registry.names import REGISTRIES
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

INFERENCE = "neocloud.inference.v1"
CREATE = f"{INFERENCE}.ModelService/Create"
LIST = f"{INFERENCE}.DeploymentService/List"
BASE_ID, ADAPTER_ID = "inferencemodel-e00bank", "inferencemodel-e00support"
ADD = ("model", "add", "support", "s3://models/support", "--base", "bank")


def resource(name: str, resource_id: str, spec: dict[str, Any]) -> Any:
    metadata = {"id": resource_id, "parent_id": PROJECT, "name": name}
    document = {"metadata": metadata, "spec": spec, "status": {"state": "READY", "lora_rank": 4}}
    return contract.from_dict(contract.message(f"{INFERENCE}.Model"), document)


@pytest.fixture
def adding(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    monkeypatch.setattr(command, "POLL_SECONDS", 0.01)
    cloud.serve(f"{INFERENCE}.ModelService/GetByName", resource("bank", BASE_ID, {}))
    cloud.serve(CREATE, operation(ADAPTER_ID))
    cloud.serve(f"{INFERENCE}.ModelService/Get", resource("support", ADAPTER_ID, {"base_model_id": BASE_ID}))
    return cloud


def deployments(*, loads_after: int, max_adapters: int = 4, base: str = BASE_ID) -> Callable[[Any], Any]:
    """Answer with a deployment that serves the adapter once it was listed so many times."""
    answers = 0

    def answer(request: Any) -> Any:
        nonlocal answers
        answers += 1
        names = ["bank", *(["support"] if answers > loads_after else [])]
        document = {
            "metadata": {"id": "inferencedeployment-e00bank", "parent_id": PROJECT, "name": "desk"},
            "spec": {"model_id": base, "max_adapters": max_adapters},
            "status": {
                "state": "READY",
                "served_names": names,
                "replicas": [{"name": "0", "state": "READY"}],
            },
        }
        listed = contract.method(LIST).output()
        listed.items.append(contract.from_dict(contract.message(f"{INFERENCE}.Deployment"), document))
        return listed

    return answer


def test_it_waits_until_a_deployment_serves_the_adapter(signed_in: Neo, adding: FakeServer) -> None:
    adding.serve(LIST, deployments(loads_after=3))
    ran = signed_in(*ADD)
    assert ran.code == 0, ran.err
    assert "Deployment desk serves it." in ran.out + ran.err
    assert len(adding.asked(LIST)) == 4


@pytest.mark.parametrize("other", [{"max_adapters": 0}, {"base": "inferencemodel-e00other"}])
def test_it_waits_for_no_deployment_that_takes_no_such_adapter(
    signed_in: Neo, adding: FakeServer, other: dict[str, Any]
) -> None:
    adding.serve(LIST, deployments(loads_after=0, **other))
    ran = signed_in(*ADD)
    assert ran.code == 0, ran.err
    assert "neo deploy bank --max-adapters 4" in ran.out + ran.err
    assert len(adding.asked(LIST)) == 1


def test_a_deployment_without_room_is_no_error(
    signed_in: Neo, adding: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "SERVED_SECONDS", 0.1)
    adding.serve(LIST, deployments(loads_after=10**9))
    ran = signed_in(*ADD)
    assert ran.code == 0, ran.err
    assert "serves it." not in ran.out + ran.err


def test_a_caller_who_may_not_list_deployments_adds_all_the_same(signed_in: Neo, adding: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.permission_denied("inference.deployments.list", PROJECT)

    adding.serve(LIST, refuse)
    assert signed_in(*ADD).code == 0


HUB_ADD = ("model", "add", "support", "team/support")


def test_an_id_of_the_hub_that_may_mean_a_registry_is_not_guessed(signed_in: Neo, adding: FakeServer) -> None:
    adding.serve(f"{REGISTRIES}/GetByName", contract.message("nebius.registry.v1.Registry")())
    ran = signed_in(*HUB_ADD)
    assert ran.code and "team/support:latest" in ran.err and "--revision main" in ran.err
    assert not adding.asked(CREATE)
    assert signed_in(*HUB_ADD, "--revision", "main").code == 0
    assert adding.asked(CREATE)[0].spec.source.hub.id == "team/support"


def test_an_id_of_the_hub_needs_no_registry(signed_in: Neo, adding: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.not_found("registry", request.name)

    adding.serve(f"{REGISTRIES}/GetByName", refuse)
    assert signed_in(*HUB_ADD).code == 0
    assert adding.asked(CREATE)[0].spec.source.hub.id == "team/support"


def test_a_name_without_a_source_is_no_id_of_the_hub(signed_in: Neo, adding: FakeServer) -> None:
    ran = signed_in("model", "add", "assistant")
    assert ran.code and "does not come with Neocloud; smollm2 and all-minilm-l6-v2 do" in ran.err
    assert "neo model add assistant SOURCE" in ran.err and not adding.asked(CREATE)


@pytest.mark.parametrize("name", ["smollm2", "all-minilm-l6-v2"])
def test_a_model_that_comes_along_is_made_on_the_clouds_machine(
    signed_in: Neo, adding: FakeServer, name: str
) -> None:
    """The profile of these tests is of a cloud elsewhere."""
    ran = signed_in("model", "add", name)
    assert ran.code and "made on the cloud's own machine" in ran.err and not adding.asked(CREATE)


def test_a_folder_of_that_name_is_taken_where_it_is_named(
    signed_in: Neo, adding: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    ran = signed_in("model", "add", "mine", "smollm2", "--in-place")
    assert ran.code == 0, ran.err
    (request,) = adding.asked(CREATE)
    assert request.spec.source.folder == str(tmp_path / "smollm2") and not request.spec.license
