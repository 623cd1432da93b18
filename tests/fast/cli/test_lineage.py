"""`neo model lineage`, `neo model list --trained-on` and `neo model rebuild`."""

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli.commands.inference import rebuild
from neocloud.cli.commands.tuning import file
from neocloud.client.errors import ClientError
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer, operation

LINEAGE = "neocloud.tuning.v1.LineageService"
MODELS = "neocloud.inference.v1.ModelService"
MODEL_ID, BASE_ID, JOB_ID = "inferencemodel-e00bank", "inferencemodel-e00tiny", "finetuningjob-e00one"
FILE = "file-" + "0" * 24
CHATS = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}\n' * 3
DIGEST = hashlib.sha256(CHATS.encode()).hexdigest()
NAME = "tiny:ft-bank-1a2b3c4d"


def model(name: str, model_id: str, digest: str = "d" * 64, base: str = "") -> Any:
    document = {
        "metadata": {"id": model_id, "parent_id": PROJECT, "name": name},
        "spec": {"base_model_id": base},
        "status": {"state": "READY", "digest": digest},
    }
    return contract.from_dict(contract.message("neocloud.inference.v1.Model"), document)


def fact(name: str, value: str, *, is_reported: bool = False) -> dict[str, Any]:
    return {"name": name, "value": value, "is_reported": is_reported}


def graph(file_id: str = FILE, recipe: str = "c" * 64) -> Any:
    nodes = [
        {"key": "d", "type": "DATA_SET", "id": file_id, "name": file_id, "digest": DIGEST, "state": "deleted",
         "facts": [fact("rows", "400"), fact("left_out truncated", "2", is_reported=True)]},
        {"key": "j", "type": "JOB", "id": JOB_ID, "created_at": "2026-11-29T12:00:00Z", "state": "SUCCEEDED",
         "facts": [fact("seed", "42"), fact("recipe", recipe, is_reported=True),
                   fact("processor", "Intel \x1b[31mXeon Platinum 8488C with a very long name")],
         "not_recorded": ["nodes"]},
        {"key": "c", "type": "CHECKPOINT", "name": "checkpoint-000040", "state": "kept"},
        {"key": f"model:{BASE_ID}", "type": "MODEL", "id": BASE_ID, "name": "tiny", "digest": "b" * 64,
         "state": "READY", "facts": [fact("origin", "added"), fact("license", "Apache-2.0")]},
        {"key": f"model:{MODEL_ID}", "type": "MODEL", "id": MODEL_ID, "name": NAME, "digest": "a" * 64,
         "state": "READY", "facts": [fact("origin", "trained")]},
        {"key": "e", "type": "EVALUATION", "name": "held-out conversations",
         "facts": [fact("fine_tuned_perplexity", "2.5200", is_reported=True)]},
        {"key": "s", "type": "DEPLOYMENT", "id": "inferencedeployment-e00desk", "name": "desk"},
        {"key": "t", "type": "TOKENS", "facts": [fact("input", "0.012345 million-tokens")]},
        {"key": "m", "type": "COST", "facts": [fact("total", "0.002100 USD")]},
    ]  # fmt: skip
    trained, base = f"model:{MODEL_ID}", f"model:{BASE_ID}"
    edges = [
        ("d", "j", "trained on"), (base, "j", "started from"), ("j", trained, "made by"),
        ("j", "c", "saved by"), (base, trained, "builds on"), (trained, "e", "of"), (trained, "s", "serves"),
        ("s", "t", "through"), ("t", "m", "of"),
    ]  # fmt: skip
    record = {
        "job_id": JOB_ID,
        "spec": {"model_id": BASE_ID, "training_file": file_id, "seed": 7, "suffix": "bank",
                 "platform": "cpu-local", "preset": "2vcpu-8gb", "job_metadata": {"team": "cards"}},
        "hyperparameters": {"n_epochs": 8, "batch_size": 4, "learning_rate": 0.005,
                            "learning_rate_multiplier": 1.0, "lora": True, "lora_r": 16},
        "training_data": {"sha256": DIGEST, "size_bytes": len(CHATS), "rows": 3},
        "base": {"id": BASE_ID, "name": "tiny", "digest": "b" * 64},
        "description": {"recipe_sha256": recipe, "processor": "Xeon"},
    }  # fmt: skip
    document = {
        "nodes": nodes,
        "edges": [{"source": source, "target": target, "relation": how} for source, target, how in edges],
        "record": record,
        "notices": ["Something is not shown, because " + "of many words " * 8],
    }
    return contract.from_dict(contract.message("neocloud.tuning.v1.Lineage"), document)


@pytest.fixture
def traced(cloud: FakeServer) -> FakeServer:
    cloud.serve(f"{MODELS}/GetByName", model(NAME, MODEL_ID, "a" * 64, BASE_ID))
    cloud.serve(f"{LINEAGE}/GetLineage", graph())
    return cloud


def test_the_tree_fits_80_columns_and_shows_every_step(signed_in: Neo, traced: FakeServer) -> None:
    ran = signed_in("model", "lineage", NAME)
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80 and "\x1b" not in ran.out
    assert lines[0] == f"model: {NAME}  {MODEL_ID}"
    for part in (f"├─ made by: {JOB_ID}  SUCCEEDED", f"│  ├─ data: {FILE}  deleted", "sha256 " + DIGEST[:12],
                 "left out truncated 2*", "not recorded: nodes", "checkpoint: checkpoint-000040  kept",
                 "base: tiny", "license Apache-2.0", "├─ evaluation: held-out conversations",
                 "fine tuned perplexity 2.5200*", "└─ served by: desk",
                 "tokens: input 0.012345 million-tokens", "cost: total 0.002100 USD",
                 "* reported by the job", "Something is not shown"):  # fmt: skip
        assert part in ran.out, (part, ran.out)


def test_programs_get_the_whole_graph(signed_in: Neo, traced: FakeServer) -> None:
    ran = signed_in("model", "lineage", NAME, "--output", "json")
    document = json.loads(ran.out)
    assert len(document["nodes"]) == 9 and len(document["edges"]) == 9
    assert document["record"]["training_data"]["sha256"] == DIGEST


@pytest.mark.parametrize("is_path", [True, False])
def test_models_that_have_seen_a_file_are_listed(
    signed_in: Neo, cloud: FakeServer, tmp_path: Path, is_path: bool
) -> None:
    path = tmp_path / "chats.jsonl"
    path.write_text(CHATS)
    listed = contract.method(f"{MODELS}/List").output()
    listed.items.extend([model("tiny", BASE_ID), model(NAME, MODEL_ID)])
    cloud.serve(f"{MODELS}/List", listed)
    trained = contract.method(f"{LINEAGE}/ListTrainedModels").output(job_ids=[JOB_ID], has_unrecorded=True)
    trained.items.add(id=MODEL_ID, name=NAME, relation="trained on")
    cloud.serve(f"{LINEAGE}/ListTrainedModels", trained)
    ran = signed_in("model", "list", "--trained-on", str(path) if is_path else FILE)
    assert ran.code == 0, ran.err
    assert NAME in ran.out and "tiny " not in ran.out
    assert JOB_ID in ran.err and "not recorded" in ran.err
    assert cloud.asked(f"{LINEAGE}/ListTrainedModels")[0].file == (DIGEST if is_path else FILE)


def test_a_name_that_is_no_file_is_refused(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.serve(f"{MODELS}/List", contract.method(f"{MODELS}/List").output())
    ran = signed_in("model", "list", "--trained-on", "absent.jsonl")
    assert ran.code == 2 and "SHA-256" in ran.err


JOBS = "neocloud.tuning.v1.FineTuningJobService"
AGAIN_ID, AGAIN_JOB = "inferencemodel-e00again", "finetuningjob-e00two"


@pytest.fixture
def rebuilding(traced: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A cloud that has base and file, and whose jobs succeed at once."""
    traced.serve(f"{JOBS}/Create", operation(AGAIN_JOB))
    job = contract.message("neocloud.tuning.v1.FineTuningJob")
    document = {
        "metadata": {"id": AGAIN_JOB},
        "status": {"state": "SUCCEEDED", "fine_tuned_model_id": AGAIN_ID},
    }
    traced.serve(f"{JOBS}/Get", contract.from_dict(job, document))
    traced.serve(f"{JOBS}/ListEvents", contract.method(f"{JOBS}/ListEvents").output())
    models = {BASE_ID: model("tiny", BASE_ID, "b" * 64), AGAIN_ID: model("again", AGAIN_ID, "a" * 64)}
    traced.serve(f"{MODELS}/Get", lambda request: models[request.id])
    monkeypatch.setattr(rebuild, "gateway_of", lambda *_, **__: FakeGateway())
    return traced


class FakeGateway:
    """Has the uploaded file, unless `gone`."""

    gone = False

    def __enter__(self) -> "FakeGateway":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def get(self, path: str) -> Any:
        if self.gone:
            raise ClientError("NOT_FOUND", "no such file")
        return {"id": path}


def test_a_model_is_built_again_from_what_was_recorded(signed_in: Neo, rebuilding: FakeServer) -> None:
    ran = signed_in("model", "rebuild", NAME)
    assert ran.code == 0, ran.err
    assert f"again has the same weights: SHA-256 {'a' * 64}" in ran.out
    [request] = rebuilding.asked(f"{JOBS}/Create")
    spec = request.spec
    assert (spec.model_id, spec.training_file, spec.seed) == (BASE_ID, FILE, 7)
    assert (spec.platform, spec.preset, spec.job_metadata) == ("cpu-local", "2vcpu-8gb", {"team": "cards"})
    used = spec.hyperparameters
    assert (used.n_epochs, used.batch_size, used.learning_rate, used.lora_r) == (8, 4, 0.005, 16)
    assert not used.HasField("learning_rate_multiplier")


def test_other_weights_are_explained(signed_in: Neo, rebuilding: FakeServer) -> None:
    graphs = {MODEL_ID: graph(), AGAIN_ID: graph(recipe="e" * 64)}
    rebuilding.serve(f"{LINEAGE}/GetLineage", lambda request: graphs[request.id])
    rebuilding.serve(f"{MODELS}/Get", lambda request: model("x", request.id, "b" * 64))
    ran = signed_in("model", "rebuild", NAME, "--output", "json")
    assert ran.code == 1
    found = json.loads(ran.out)
    assert not found["is_same"] and found["differences"] == {"recipe": ["c" * 64, "e" * 64]}


def test_a_file_that_is_gone_is_asked_for_by_its_digest(
    signed_in: Neo, rebuilding: FakeServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(FakeGateway, "gone", True)
    ran = signed_in("model", "rebuild", NAME)
    assert ran.code == 3 and DIGEST in ran.err and "--data FILE" in ran.err
    other = tmp_path / "other.jsonl"
    other.write_text(CHATS + CHATS)
    ran = signed_in("model", "rebuild", NAME, "--data", str(other))
    assert ran.code == 2 and DIGEST in ran.err and not rebuilding.asked(f"{JOBS}/Create")


def test_a_base_with_other_weights_is_refused(signed_in: Neo, rebuilding: FakeServer) -> None:
    rebuilding.serve(f"{MODELS}/Get", model("tiny", BASE_ID, "f" * 64))
    ran = signed_in("model", "rebuild", NAME)
    assert ran.code == 1 and "other weights" in ran.err and not rebuilding.asked(f"{JOBS}/Create")


def test_a_file_is_deleted_after_its_models_are_named(
    signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(FakeGateway, "delete", lambda self, path: asked.append(path), raising=False)
    monkeypatch.setattr(file, "gateway_of", lambda *_, **__: FakeGateway())
    trained = contract.method(f"{LINEAGE}/ListTrainedModels").output(job_ids=[JOB_ID])
    trained.items.add(id=MODEL_ID, name=NAME, relation="trained on")
    cloud.serve(f"{LINEAGE}/ListTrainedModels", trained)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ran = signed_in("tuning", "file", "delete", FILE)
    assert ran.code and not asked, "nobody answers the question"
    assert f"{NAME} (trained on)" in ran.err and JOB_ID in ran.err
    assert signed_in("tuning", "file", "delete", FILE, "--yes").code == 0 and asked == [f"files/{FILE}"]


def test_a_cloud_without_lineage_deletes_as_before(
    signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeGateway, "delete", lambda self, path: None, raising=False)
    monkeypatch.setattr(file, "gateway_of", lambda *_, **__: FakeGateway())
    assert signed_in("tuning", "file", "delete", FILE, "--yes").code == 0


def test_files_are_listed_whole(signed_in: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded = {"id": FILE, "filename": "chats.jsonl", "bytes": 12345, "purpose": "fine-tune"}
    page = {"data": [uploaded | {"created_at": 1795776532, "sha256": "a" * 64}], "has_more": False}
    monkeypatch.setattr(FakeGateway, "get", lambda self, path: page)
    monkeypatch.setattr(file, "gateway_of", lambda *_, **__: FakeGateway())
    ran = signed_in("tuning", "file", "list")
    assert ran.code == 0, ran.err
    assert FILE in ran.out and "12,345" in ran.out and "a" * 64 in ran.out


def test_an_answer_without_the_model_is_no_traceback(signed_in: Neo, traced: FakeServer) -> None:
    traced.serve(f"{LINEAGE}/GetLineage", contract.method(f"{LINEAGE}/GetLineage").output())
    ran = signed_in("model", "lineage", NAME)
    assert ran.code and "has no model:" in ran.err
