"""`neo tune --serve`: what is checked before the training, and how base and new model are called after it."""

import hashlib
import io
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.tuning import serving, tune
from neocloud.cli.storage import session
from neocloud.core import contract
from tests.fast.cli.conftest import Neo, Ran
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

INFERENCE = "neocloud.inference.v1"
MODELS, DEPLOYMENTS = f"{INFERENCE}.ModelService", f"{INFERENCE}.DeploymentService"
BUDGETS = f"{INFERENCE}.BudgetService"
PRICES = "neocloud.billing.v1.TokenPriceService/List"
JOBS = "neocloud.tuning.v1.FineTuningJobService"
JOB_ID = "finetuningjob-e00one"
OTHER_PROJECT = "project-e00other"
NEW = "bank-support"
EXCHANGE = {"prompt": "Hi", "completion": "Hello"}
BASE_MODELS = {"bank": "", "bank-old": "inferencemodel-e00bank"}
"""The base model, and an adapter on it."""


@dataclass
class FakeGateway:
    called: list[str] = field(default_factory=list)

    def __enter__(self) -> "FakeGateway":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""

    def post(self, path: str, body: dict[str, Any]) -> Any:
        self.called.append(body["model"])
        return {"choices": [{"message": {"content": f"I am {body['model']}."}}]}


@dataclass
class Cloud:
    """A cloud whose jobs end immediately and whose deployments are READY when they are created."""

    server: FakeServer
    gateway: FakeGateway
    deployments: list[Any] = field(default_factory=list)

    def deploy(self, name: str, *, state: str = "READY", **spec: object) -> None:
        """Add a deployment of the model `bank`."""
        served = [f"{each}-fast" if spec.get("flavour") == "FAST" else each for each in ("bank", NEW)]
        document = {
            "metadata": {"id": f"inferencedeployment-e00{name}", "parent_id": PROJECT, "name": name},
            "spec": {"model_id": "inferencemodel-e00bank", **spec},
            "status": {
                "state": state,
                "served_names": served if spec.get("max_adapters") else served[:1],
                "replicas": [{"name": "0", "state": "READY"}] if state == "READY" else [],
            },
        }
        self.deployments.append(contract.from_dict(contract.message(f"{INFERENCE}.Deployment"), document))

    def create(self, request: Any) -> Any:
        """Add the deployment as READY."""
        made = contract.message(f"{INFERENCE}.Deployment")()
        made.metadata.CopyFrom(request.metadata)
        made.metadata.id = f"inferencedeployment-e00{request.metadata.name}"
        made.spec.CopyFrom(request.spec)
        made.status.replicas.add(name="0", state=contract.message(f"{INFERENCE}.Replica").READY)
        name = request.spec.model_id.removeprefix("inferencemodel-e00")
        made.status.served_names.extend([name, *([NEW] if request.spec.max_adapters else [])])
        self.deployments.append(made)
        return operation(made.metadata.id)

    def set_budget(self) -> None:
        budget = contract.message(f"{INFERENCE}.Budget")()
        self.server.serve(f"{BUDGETS}/List", contract.method(f"{BUDGETS}/List").output(items=[budget]))

    @property
    def created(self) -> list[Any]:
        return self.server.asked(f"{DEPLOYMENTS}/Create")

    @property
    def has_trained(self) -> bool:
        return bool(self.server.asked(f"{JOBS}/Create"))


def model(name: str) -> Any:
    document = {
        "metadata": {"id": f"inferencemodel-e00{name}", "parent_id": PROJECT, "name": name},
        "spec": {"base_model_id": BASE_MODELS.get(name, "")},
    }
    return contract.from_dict(contract.message(f"{INFERENCE}.Model"), document)


@pytest.fixture
def cloud_with_jobs(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud(cloud, FakeGateway())
    cloud.serve(f"{MODELS}/GetByName", lambda request: model(request.name))
    cloud.serve(f"{MODELS}/Get", lambda request: model(request.id.removeprefix("inferencemodel-e00")))
    listed = contract.method(f"{MODELS}/List").output(items=[model("bank"), model("bank-old")])
    cloud.serve(f"{MODELS}/List", listed)
    deployments = contract.method(f"{DEPLOYMENTS}/List").output
    cloud.serve(f"{DEPLOYMENTS}/List", lambda request: deployments(items=made.deployments))
    cloud.serve(f"{DEPLOYMENTS}/Create", made.create)
    cloud.serve(
        f"{DEPLOYMENTS}/Get",
        lambda request: next(each for each in made.deployments if each.metadata.id == request.id),
    )
    cloud.serve(f"{BUDGETS}/List", contract.method(f"{BUDGETS}/List").output())
    cloud.serve(PRICES, contract.method(PRICES).output())
    platforms = "nebius.compute.v1.PlatformService/List"
    shapes = {"presets": [{"name": "2vcpu-8gb", "resources": {"memory_gibibytes": 8}}]}
    item = {"metadata": {"name": "cpu-local"}, "spec": shapes}
    cloud.serve(platforms, contract.from_dict(contract.method(platforms).output, {"items": [item]}))
    is_merged: list[bool] = []

    def start(request: Any) -> Any:
        is_merged.append(request.spec.merge)
        return operation(JOB_ID)

    def job(request: Any) -> Any:
        document = {
            "metadata": {"id": JOB_ID, "parent_id": PROJECT},
            "spec": {"merge": is_merged[-1], "platform": "cpu-local"},
            "status": {"state": "SUCCEEDED", "fine_tuned_model": NEW},
        }
        return contract.from_dict(contract.message("neocloud.tuning.v1.FineTuningJob"), document)

    cloud.serve(f"{JOBS}/Create", start)
    cloud.serve(f"{JOBS}/Get", job)
    cloud.serve(f"{JOBS}/ListEvents", contract.method(f"{JOBS}/ListEvents").output())
    monkeypatch.setattr(tune, "gateway_of", lambda *_, **__: made.gateway)
    monkeypatch.setattr(tune, "upload", lambda *_: "file-1")
    monkeypatch.setattr(serving, "POLL_SECONDS", 0.01)
    return made


Tuned = Callable[..., Ran]


@pytest.fixture
def tuned(signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path) -> Tuned:
    """Run `neo tune DATA --base bank` with more options."""
    data = tmp_path / "chats.jsonl"
    data.write_text(json.dumps(EXCHANGE) + "\n")

    def call(*options: str, base: str = "bank") -> Ran:
        return signed_in("tune", str(data), "--base", base, "--question", "Who?", *options)

    return call


def test_an_object_of_a_bucket_is_named_and_not_uploaded(
    signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path
) -> None:
    """A validation file that is here is uploaded."""
    data = tmp_path / "held-out.jsonl"
    data.write_text(json.dumps(EXCHANGE) + "\n")
    ran = signed_in("tune", "s3://data-sets/chats.jsonl", "--base", "bank", "--validation", str(data))
    assert ran.code == 0, ran.err
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert request.spec.training_file == "s3://data-sets/chats.jsonl"
    assert request.spec.validation_file == "file-1"


def test_the_folder_of_a_bucket_to_write_to_is_named(signed_in: Neo, cloud_with_jobs: Cloud) -> None:
    options = ("--base", "bank", "--save-to", "s3://data-sets/models")
    ran = signed_in("tune", "s3://data-sets/chats.jsonl", *options)
    assert ran.code == 0, ran.err
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert request.spec.output == "s3://data-sets/models"


CONFIGURATION = {"suffix": "desk", "seed": 7, "hyperparameters": {"n_epochs": 3, "lora_r": 8}}


def spec_of(ran: Ran, cloud: Cloud) -> Any:
    assert ran.code == 0, ran.err
    return cloud.server.asked(f"{JOBS}/Create")[-1].spec


def test_a_configuration_sets_what_no_option_does(
    tuned: Tuned, cloud_with_jobs: Cloud, tmp_path: Path
) -> None:
    config = tmp_path / "bank.json"
    config.write_text(json.dumps(CONFIGURATION))
    spec = spec_of(tuned("--config", str(config), "--epochs", "5"), cloud_with_jobs)
    used = spec.hyperparameters
    assert (spec.suffix, spec.seed, used.n_epochs, used.lora_r) == ("desk", 7, 5, 8)
    digest = hashlib.sha256(config.read_bytes()).hexdigest()
    assert spec.job_metadata == {"config": str(config), "config_sha256": digest}
    assert not spec_of(tuned(), cloud_with_jobs).job_metadata


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"training_file": "file-1"}', '{"hyperparameters": {"epochs": 1}}', "{}" + " " * 70_000],
)
def test_another_document_is_no_configuration(
    tuned: Tuned, cloud_with_jobs: Cloud, tmp_path: Path, text: str
) -> None:
    config = tmp_path / "bank.json"
    config.write_text(text)
    assert tuned("--config", str(config)).code == 2 and not cloud_with_jobs.has_trained


def test_the_version_of_a_configuration_in_a_bucket_is_named(
    tuned: Tuned, cloud_with_jobs: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Versioned:
        def get_object(self, **place: str) -> dict[str, Any]:
            assert place == {"Bucket": "configs", "Key": "bank.json"}
            return {"Body": io.BytesIO(json.dumps(CONFIGURATION).encode()), "VersionId": "v7"}

    monkeypatch.setattr(session, "s3_session", lambda *_, **__: nullcontext(Versioned()))
    spec = spec_of(tuned("--config", "s3://configs/bank.json"), cloud_with_jobs)
    assert spec.suffix == "desk" and spec.job_metadata["config"] == "s3://configs/bank.json"
    assert spec.job_metadata["config_version"] == "v7"


@pytest.mark.parametrize(("options", "count"), [((), 1), (("--merge",), 2)])
def test_the_models_are_served_in_the_project_of_the_job(
    tuned: Tuned, cloud_with_jobs: Cloud, options: tuple[str, ...], count: int
) -> None:
    ran = tuned("--serve", "--project", OTHER_PROJECT, *options)
    assert ran.code == 0, ran.err
    assert [each.metadata.parent_id for each in cloud_with_jobs.created] == [OTHER_PROJECT] * count
    assert cloud_with_jobs.gateway.called == ["bank", NEW]


def test_a_model_deployed_only_with_fast_is_called_by_that_name(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    cloud_with_jobs.deploy("bank-fast", flavour="FAST", max_adapters=4)
    ran = tuned("--serve")
    assert ran.code == 0, ran.err
    assert cloud_with_jobs.gateway.called == ["bank-fast", f"{NEW}-fast"] and not cloud_with_jobs.created
    assert f"neo chat {NEW}-fast --compare bank-fast" in ran.out


def test_a_deployment_asleep_is_called_because_the_call_wakes_it(
    tuned: Tuned, cloud_with_jobs: Cloud
) -> None:
    cloud_with_jobs.deploy("bank", state="ASLEEP", max_adapters=4)
    ran = tuned("--serve")
    assert ran.code == 0, ran.err
    assert cloud_with_jobs.gateway.called == ["bank", NEW]


@pytest.mark.parametrize("options", [(), ("--merge",)])
def test_a_deployment_in_error_ends_the_wait_with_its_reason(
    tuned: Tuned, cloud_with_jobs: Cloud, options: tuple[str, ...]
) -> None:
    cloud_with_jobs.deploy("mine", state="ERROR", max_adapters=4)
    cloud_with_jobs.deployments[0].status.message = "the model server ended: no CUDA device."
    ran = tuned("--serve", *options)
    assert ran.code == 1 and not cloud_with_jobs.gateway.called
    assert "its deployment mine is in state ERROR: the model server ended: no CUDA device." in ran.err
    assert "neo deployment logs mine" in ran.err


def test_a_deployment_without_adapters_is_refused_before_the_training(
    tuned: Tuned, cloud_with_jobs: Cloud
) -> None:
    cloud_with_jobs.deploy("bank")
    ran = tuned("--serve")
    assert ran.code == 1 and "bank of bank does not accept adapters" in ran.err
    assert not cloud_with_jobs.has_trained


@pytest.mark.parametrize("base", ["bank", "bank-old"])
def test_a_price_for_a_model_that_is_served_is_refused(
    tuned: Tuned, cloud_with_jobs: Cloud, base: str
) -> None:
    """An adapter has the price of the deployment."""
    cloud_with_jobs.deploy("mine", max_adapters=4)
    ran = tuned("--serve", "--price", "0.10/0.40", base=base)
    assert ran.code == 1 and "neo deployment price mine 0.10/0.40" in ran.err
    assert not cloud_with_jobs.has_trained


@pytest.mark.parametrize("base", ["bank", "bank-old"])
def test_with_a_budget_the_deployment_that_is_there_needs_a_price(
    tuned: Tuned, cloud_with_jobs: Cloud, base: str
) -> None:
    cloud_with_jobs.set_budget()
    cloud_with_jobs.deploy("mine", max_adapters=4)
    ran = tuned("--serve", base=base)
    assert ran.code == 1 and "neo deployment price mine INPUT/OUTPUT" in ran.err
    assert not cloud_with_jobs.has_trained
    cloud_with_jobs.deployments.clear()
    cloud_with_jobs.deploy("mine", max_adapters=4, price={"input": "0", "output": "0"})
    ran = tuned("--serve", base=base)
    assert ran.code == 0, ran.err


def test_with_a_budget_a_merged_model_needs_a_price(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    """The price of the base is not that of another model."""
    cloud_with_jobs.set_budget()
    cloud_with_jobs.deploy("bank", price={"input": "0", "output": "0"})
    ran = tuned("--serve", "--merge")
    assert ran.code == 1 and "The new model has no price" in ran.err and "--price" in ran.err
    assert not cloud_with_jobs.has_trained
    ran = tuned("--serve", "--merge", "--price", "0.10/0.40")
    assert ran.code == 0, ran.err
    [created] = cloud_with_jobs.created
    assert (created.spec.price.input, created.spec.price.output) == ("0.10", "0.40")


def test_with_a_budget_a_model_that_is_not_served_needs_a_price(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    cloud_with_jobs.set_budget()
    ran = tuned("--serve")
    assert ran.code == 1 and "bank has no price" in ran.err and not cloud_with_jobs.has_trained
    ran = tuned("--serve", "--price", "0")
    assert ran.code == 0, ran.err


def test_json_on_stdout_is_the_job_alone(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    ran = tuned("--serve", "-o", "json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["metadata"]["id"] == JOB_ID
    assert f"{NEW}: I am {NEW}." in ran.err


def test_serving_needs_the_end_of_the_job(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    ran = tuned("--serve", "--no-follow")
    assert ran.code == 2 and "leave out --no-follow" in ran.err
    assert not cloud_with_jobs.has_trained


BAD_DATA = [
    ("a.jsonl", json.dumps(EXCHANGE | {"completion": ["Rome"]}), "Line 1: column 'completion' holds a value"),
    ("a.jsonl", json.dumps({"text": "Hi"}), "Name them `prompt` and `completion`"),
    ("a.json", json.dumps([EXCHANGE | {"context": "Once."}]), "Row 1: column 'context' holds something"),
    ("a.json", json.dumps([EXCHANGE | {"completion": "\ud83d"}]), "half of a surrogate pair"),
    ("a.csv", "prompt,completion\nHi,\n", "Line 2: message 2 (assistant) has no content"),
]


@pytest.mark.parametrize(("name", "content", "says"), BAD_DATA)
def test_bad_data_are_refused_before_they_are_uploaded(
    signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path, name: str, content: str, says: str
) -> None:
    """With row and column, and without options that `neo tune` has not."""
    (tmp_path / name).write_text(content)
    ran = signed_in("tune", str(tmp_path / name), "--base", "bank")
    assert ran.code != 0 and says in ran.err and not cloud_with_jobs.has_trained
    assert "--skip-bad" not in ran.err and "-column" not in ran.err and "Traceback" not in ran.err


TRY = "neocloud.common.v1.TrialService/TryCreate"


@pytest.fixture
def uploads(cloud_with_jobs: Cloud, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    done: list[Path] = []
    monkeypatch.setattr(tune, "upload", lambda gateway, path: done.append(path) or "file-1")
    return done


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (contract.not_enough_resources("compute.nodes", "1 x cpu-local", "This machine cannot hold it."), 6),
        (contract.permission_denied("tuning.jobs.create", "project-e00risk"), 4),
        (contract.bad_field("spec.model_id", "has no chat template"), 2),
    ],
)
def test_what_speaks_against_the_job_is_told_before_the_upload(
    tuned: Tuned, cloud_with_jobs: Cloud, uploads: list[Path], refusal: contract.ApiError, code: int
) -> None:
    def refuse(request: Any) -> Any:
        raise refusal

    cloud_with_jobs.server.serve(TRY, refuse)
    ran = tuned()
    assert ran.code == code, ran.err
    assert not uploads and not cloud_with_jobs.has_trained


def test_a_shape_without_room_is_left_out_before_the_upload(
    tuned: Tuned, cloud_with_jobs: Cloud, uploads: list[Path]
) -> None:
    platforms = "nebius.compute.v1.PlatformService/List"
    items = [
        {
            "metadata": {"name": name},
            "spec": {"presets": [{"name": preset, "resources": {"memory_gibibytes": 8}}]},
        }
        for name, preset in (("gpu-local", "1gpu-2vcpu-8gb"), ("cpu-local", "2vcpu-8gb"))
    ]
    cloud_with_jobs.server.serve(
        platforms, contract.from_dict(contract.method(platforms).output, {"items": items})
    )

    def attempt(request: Any) -> Any:
        job = contract.unpack(request.request)
        assert (job.spec.training_file, list(request.assumed_fields)) == (
            "file-not-uploaded",
            ["spec.training_file"],
        )
        if job.spec.platform == "gpu-local":
            raise contract.not_enough_resources("compute.nodes", "1 x gpu-local", "There is no GPU.")
        made = contract.message("neocloud.tuning.v1.FineTuningJob")(spec=job.spec)
        return contract.method(TRY).output(resource=contract.pack(made))

    cloud_with_jobs.server.serve(TRY, attempt)
    assert tuned().code == 0
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert (request.spec.platform, request.spec.training_file) == ("cpu-local", "file-1")
    assert len(uploads) == 1


def test_a_cloud_that_tries_nothing_checks_when_the_job_is_created(
    tuned: Tuned, cloud_with_jobs: Cloud, uploads: list[Path]
) -> None:
    assert tuned().code == 0
    assert cloud_with_jobs.has_trained and len(uploads) == 1


def test_a_dry_run_shows_the_price_and_uploads_nothing(
    tuned: Tuned, cloud_with_jobs: Cloud, uploads: list[Path], tmp_path: Path
) -> None:
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({**EXCHANGE}).replace("Who", "Where") + "\n")

    def attempt(request: Any) -> Any:
        job = contract.message("neocloud.tuning.v1.FineTuningJob")(spec=contract.unpack(request.request).spec)
        return contract.method(TRY).output(resource=contract.pack(job))

    estimate = "nebius.billing.v1.CalculatorService/EstimateBatch"
    costs = [
        {"aggregation_unit": {"unit": unit}, "general": {"total": {"cost": cost}}}
        for unit, cost in (("hour", "0.0123456789"), ("month", "9.0123456789"))
    ]
    content = {"currency": "USD", "total_costs": costs}
    cloud_with_jobs.server.serve(TRY, attempt)
    cloud_with_jobs.server.serve(estimate, contract.from_dict(contract.method(estimate).output, content))
    ran = tuned("--dry-run", "--validation", str(held_out))
    assert ran.code == 0, ran.err
    assert "Costs 0.012346 USD an hour, 9.012346 USD a month of 730 hours." in ran.out
    assert not uploads and not cloud_with_jobs.has_trained


def test_a_missing_file_is_told_first(signed_in: Neo, cloud_with_jobs: Cloud, uploads: list[Path]) -> None:
    ran = signed_in("tune", "nowhere.jsonl", "--base", "bank")
    assert ran.code == 2 and "There is no file nowhere.jsonl" in ran.err
    assert not cloud_with_jobs.server.asked(TRY)


def test_what_is_not_used_of_the_data_is_said(signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("prompt;completion;topic\nHi;Hello;greeting\n")
    ran = signed_in("tune", str(tmp_path / "a.csv"), "--base", "bank")
    assert ran.code == 0 and "a.csv: columns not used: 'topic'" in ran.err


GATE = json.dumps({"rules": [{"rule": "at_least", "metric": "rougeL", "value": 0.3}]})
RULE = {"asked": "rougeL at least 0.3", "measured": "0.2", "why": "below the limit of 0.3"}


@pytest.mark.parametrize("passes", [True, False])
def test_a_model_that_fails_the_gate_is_not_served(
    tuned: Tuned, cloud_with_jobs: Cloud, tmp_path: Path, passes: bool
) -> None:
    gate = tmp_path / "gate.json"
    gate.write_text(GATE)
    verdict = {"passed": passes, "rules": [{**RULE, "passed": passes}]}
    document = {
        "metadata": {"id": JOB_ID, "parent_id": PROJECT},
        "spec": {"platform": "cpu-local", "gate": GATE},
        "status": {"state": "SUCCEEDED", "fine_tuned_model": NEW, "gate": verdict},
    }
    job = contract.from_dict(contract.message("neocloud.tuning.v1.FineTuningJob"), document)
    cloud_with_jobs.server.serve(f"{JOBS}/Get", job)
    ran = tuned("--gate", str(gate), "--serve")
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert request.spec.gate == GATE
    assert "rougeL at least 0.3" in ran.out
    if passes:
        assert ran.code == 0 and cloud_with_jobs.gateway.called == ["bank", NEW]
    else:
        assert ran.code == 8 and not cloud_with_jobs.created and not cloud_with_jobs.gateway.called
        assert f"neo model override-gate {NEW} --reason" in ran.err


def test_a_gate_with_a_mistake_is_told_before_anything_is_uploaded(
    tuned: Tuned, cloud_with_jobs: Cloud, tmp_path: Path
) -> None:
    gate = tmp_path / "gate.json"
    for text in ("", '{"rules": []}', GATE.replace("rougeL", "judge_preference"), "null"):
        gate.write_text(text)
        ran = tuned("--gate", str(gate))
        assert ran.code == 2 and str(gate) in ran.err and not cloud_with_jobs.has_trained
    assert "there are accuracy, bleu" in tuned("--gate", str(_written(gate, "nice"))).err


def _written(gate: Path, metric: str) -> Path:
    gate.write_text(GATE.replace("rougeL", metric))
    return gate


PREFERENCE = {"prompt": "Hello?", "chosen": "Good day.", "rejected": "What?"}


def test_all_weights_and_an_early_end_are_asked_for(tuned: Tuned, cloud_with_jobs: Cloud) -> None:
    used = spec_of(tuned("--full", "--early-stopping", "3"), cloud_with_jobs).hyperparameters
    assert used.HasField("lora") and not used.lora and used.early_stopping_patience == 3
    plain = spec_of(tuned(), cloud_with_jobs)
    assert not plain.hyperparameters.HasField("lora") and not plain.method and not plain.grader


def test_preferences_are_read_as_such_before_they_are_uploaded(
    signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path
) -> None:
    data = tmp_path / "preferences.jsonl"
    data.write_text(json.dumps(PREFERENCE) + "\n")
    ran = signed_in("tune", str(data), "--base", "bank", "--method", "dpo", "--beta", "0.2")
    assert ran.code == 0, ran.err
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert request.spec.Method.Name(request.spec.method) == "DPO" and request.spec.hyperparameters.beta == 0.2
    data.write_text(json.dumps(EXCHANGE) + "\n")
    refused = signed_in("tune", str(data), "--base", "bank", "--method", "dpo")
    assert refused.code and "a preference has 'input'" in refused.err
    assert len(cloud_with_jobs.server.asked(f"{JOBS}/Create")) == 1


def test_a_grader_is_a_file_of_json(signed_in: Neo, cloud_with_jobs: Cloud, tmp_path: Path) -> None:
    data, grader = tmp_path / "tasks.jsonl", tmp_path / "grader.json"
    data.write_text(json.dumps({"prompt": "Hello?", "answer": "Good day."}) + "\n")
    options = ("--base", "bank", "--method", "reinforcement", "--grader", str(grader))
    grader.write_text('{"type": "string_check"}')
    assert signed_in("tune", str(data), *options).code == 0
    [request] = cloud_with_jobs.server.asked(f"{JOBS}/Create")
    assert json.loads(request.spec.grader) == {"type": "string_check"}
    grader.write_text("{")
    refused = signed_in("tune", str(data), *options)
    assert refused.code and "grader.json is no JSON" in refused.err
