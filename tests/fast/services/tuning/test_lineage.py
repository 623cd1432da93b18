"""The origin of a model: recorded while it is made, kept with it, and shown to those who may read it."""

import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from neocloud.messages.neocloud.tuning.v1 import LineageNode

from neocloud.cli.commands.inference.rebuild import spec_of
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.model_gateway.metering.ledger import open_ledger
from neocloud.model_gateway.metering.ledger_tables import RequestEnd, Reservation, ledger_file
from neocloud.model_gateway.openai_files.files import FileStore
from neocloud.services.tuning.reconcile import record as reconcile_record
from neocloud.services.tuning.rules.job_description import read_description
from neocloud.services.tuning.types import read_record
from neocloud.testing.waiting import until
from tests.fast.services.storage.served import ServedCloud
from tests.fast.services.tuning.cloud import CHAT, FakeCloud, add_model, create_job, fake_cloud

LINEAGE = "neocloud.tuning.v1.LineageService"
DATA = (json.dumps(CHAT) + "\n") * 40
DIGEST = hashlib.sha256(DATA.encode()).hexdigest()
DESCRIPTION: dict[str, Any] = {
    "format": 1,
    "recipe": {"sha256": "c" * 64, "packages": {"torch": "2.9.0"}},
    "data": {
        "training": {"sha256": "a" * 64, "bytes": 90, "rows": 36},
        "held_out": {"sha256": "b" * 64, "bytes": 10, "rows": 4},
        "split": {"held_out": "tenth", "seed": 42},
        "left_out": {"truncated": 2},
    },
    "seed": 42,
    "settings": {"lora_r": 16, "save_steps": 10},
    "machine": {"nodes": "worker-[0-1]", "node_count": 2, "processes": 2, "processor": "Xeon"},
    "checkpoints": [{"step": 10, "time": 1.7e9, "valid_loss": 1.25, "is_kept": False}],
}


class Cloud(ServedCloud, FakeCloud):
    async def lineage(self, model_id: str) -> Any:
        return await self.call(f"{LINEAGE}/GetLineage", id=model_id)

    async def trained_on(self, file: str) -> Any:
        return await self.call(f"{LINEAGE}/ListTrainedModels", parent_id=self.project_id, file=file)

    async def tuned(self, base_id: str, text: str = DATA, description: Any = DESCRIPTION, **spec: Any) -> Any:
        """Return a job that has made a model."""
        if "training_file" not in spec:
            spec["training_file"] = self.upload(text)
        job_id = await create_job(self, base_id, **spec)
        await until(lambda: self.pod(job_id) is not None)
        recipes = self.recipes(job_id)
        recipes.begin()
        recipes.reach(20)
        if description is not None:
            (recipes.folder / "lineage.json").write_text(json.dumps(description))
        recipes.succeed()
        job = await self.until(job_id, "SUCCEEDED")
        await self.until(job.status.fine_tuned_model_id, "READY")
        return job

    async def as_account(self, account_id: str) -> None:
        self.token = await self.token_of(account_id)


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    async with fake_cloud(tmp_path) as plain:
        yield Cloud(**vars(plain))


def only(graph: Any, kind: Any) -> Any:
    [found] = [node for node in graph.nodes if node.type == kind]
    return found


def facts(node: Any) -> dict[str, str]:
    return {each.name: each.value for each in node.facts}


def edges(graph: Any) -> set[tuple[str, str, str]]:
    """Types of both nodes, and the relation."""
    types = {node.key: LineageNode.Type.Name(node.type) for node in graph.nodes}
    return {(types[each.source], each.relation, types[each.target]) for each in graph.edges}


async def test_a_model_is_traced_from_data_to_cost(cloud: Cloud, tmp_path: Path) -> None:
    base_id = await add_model(cloud)
    config = {"config": "s3://configs/bank.json", "config_sha256": "e" * 64, "config_version": "v7"}
    job = await cloud.tuned(base_id, suffix="bank", seed=7, job_metadata=config)
    model_id, name = job.status.fine_tuned_model_id, job.status.fine_tuned_model
    ledger = open_ledger(ledger_file(tmp_path), SystemClock())
    now = int(SystemClock().now().timestamp() * 1000) + 1000
    ids = (cloud.tenant_id, cloud.project_id, "serviceaccount-e00a", "inferencedeployment-e00gone")
    for number, called in enumerate((name, "tiny")):
        ledger.write(Reservation(f"chat{number}", *ids, called, 10**7, 10**7, 4 * 10**7, 6000, 2000, now))
        ledger.write(RequestEnd(f"chat{number}", now, 6000, 0, 2000, "ok", 0))
    await ledger.flush()
    ledger.close()

    async def tokens() -> Any:
        return await cloud.lineage(model_id)

    graph = await until(
        tokens, holds=lambda found: any(each.type == LineageNode.TOKENS for each in found.nodes)
    )
    data, made_by = only(graph, LineageNode.DATA_SET), only(graph, LineageNode.JOB)
    assert (data.id, data.digest, facts(data)["rows"]) == (job.spec.training_file, DIGEST, "40")
    assert facts(data)["held_out rows"] == "4" and facts(data)["left_out truncated"] == "2"
    known = facts(made_by)
    assert (known["seed"], known["n_epochs"], known["nodes"]) == ("7", "8", "worker-[0-1]")
    assert known["recipe"] == "c" * 64 and known["package torch"] == "2.9.0" and not made_by.not_recorded
    assert all(each.is_reported for each in made_by.facts if each.name in ("recipe", "nodes"))
    assert not any(each.is_reported for each in made_by.facts if each.name in ("seed", "n_epochs"))
    assert facts(only(graph, LineageNode.CONFIGURATION)) == {"version": "v7"}
    assert facts(only(graph, LineageNode.EVALUATION))["fine_tuned_perplexity"] == "2.5000"
    assert facts(only(graph, LineageNode.TOKENS))["input"] == "0.006000 million-tokens"
    costs = {node.key: facts(node) for node in graph.nodes if node.type == LineageNode.COST}
    [of_tokens] = [each for key, each in costs.items() if "tokens:" in key]
    assert of_tokens["total"].endswith(" USD") and float(of_tokens["total"].split()[0]) > 0
    assert edges(graph) >= {
        ("DATA_SET", "trained on", "JOB"), ("MODEL", "started from", "JOB"), ("JOB", "made by", "MODEL"),
        ("JOB", "saved by", "CHECKPOINT"), ("MODEL", "builds on", "MODEL"), ("MODEL", "of", "EVALUATION"),
        ("TOKENS", "of", "COST"),
    }  # fmt: skip
    models = {node.name: node for node in graph.nodes if node.type == LineageNode.MODEL}
    assert facts(models["tiny"])["origin"] == "added" and facts(models[name])["origin"] == "trained"
    assert models[name].digest and graph.record.base.digest == models["tiny"].digest
    assert (graph.record.training_data.sha256, graph.record.hyperparameters.n_epochs) == (DIGEST, 8)

    spec = spec_of(graph.record)
    spec["hyperparameters"] = contract.from_dict(
        contract.message("neocloud.tuning.v1.Hyperparameters"), spec["hyperparameters"]
    )
    spec["seed"] = int(spec["seed"])
    again = await create_job(cloud, spec.pop("model_id"), **spec)
    await until(lambda: cloud.pod(again) is not None)
    wanted = [{**cloud.recipes(each).wanted, "name": ""} for each in (job.metadata.id, again)]
    assert wanted[0] == wanted[1], "a rebuild trains with the same settings"

    FileStore(cloud.home).delete(FileStore(cloud.home).find(job.spec.training_file))  # type: ignore[arg-type]
    await cloud.job_call("Delete", "DeleteFineTuningJobRequest", id=job.metadata.id)
    await cloud.gone(job.metadata.id)
    later = await cloud.lineage(model_id)
    assert only(later, LineageNode.JOB).state == only(later, LineageNode.DATA_SET).state == "deleted"
    assert only(later, LineageNode.DATA_SET).digest == DIGEST and later.record == graph.record
    assert edges(await cloud.lineage(base_id)) == {
        ("MODEL", "builds on", "MODEL"), ("MODEL", "of", "TOKENS"), ("TOKENS", "of", "COST")
    }  # fmt: skip


async def test_the_models_that_have_seen_a_file_are_found(cloud: Cloud) -> None:
    base_id = await add_model(cloud)
    merged = await cloud.tuned(base_id, merge=True)
    child = await cloud.tuned(merged.status.fine_tuned_model_id, json.dumps(CHAT) + "\n" + DATA)
    copy = await cloud.tuned(base_id, validation_file=cloud.upload(DATA), text=DATA + DATA)
    names = [job.status.fine_tuned_model for job in (merged, child, copy)]
    for asked in (merged.spec.training_file, DIGEST, f"sha256:{DIGEST.upper()}"):
        found = await cloud.trained_on(asked)
        assert [each.name for each in found.items] == names
        assert [each.relation for each in found.items] == ["trained on", "base", "validated on"]
        assert found.items[1].base_model == names[0] and not found.has_unrecorded and not found.job_ids
    waiting = await create_job(cloud, base_id, training_file=merged.spec.training_file)
    assert list((await cloud.trained_on(DIGEST)).job_ids) == [waiting]
    assert not (await cloud.trained_on("0" * 64)).items
    await cloud.call("neocloud.inference.v1.ModelService/Delete", id=child.status.fine_tuned_model_id)
    await cloud.gone(child.status.fine_tuned_model_id)
    grandchild = await cloud.tuned(merged.status.fine_tuned_model_id, DATA * 3, merge=True)
    await cloud.call("neocloud.inference.v1.ModelService/Delete", id=merged.status.fine_tuned_model_id)
    await cloud.gone(merged.status.fine_tuned_model_id)
    found = {each.name: each.relation for each in (await cloud.trained_on(DIGEST)).items}
    assert found == {names[2]: "validated on", grandchild.status.fine_tuned_model: "base"}
    graph = await cloud.lineage(grandchild.status.fine_tuned_model_id)
    assert {node.name: node.state for node in graph.nodes if node.type == LineageNode.MODEL}[
        names[0]
    ] == "deleted"


async def test_what_the_caller_may_not_read_is_left_out(cloud: Cloud) -> None:
    base_id = await add_model(cloud)
    job = await cloud.tuned(base_id)
    account, group = await cloud.account("reader"), await cloud.group("readers")
    await cloud.join(account, group)
    await cloud.permit(group, job.status.fine_tuned_model_id, "inference.viewer")
    await cloud.as_account(account)
    graph = await cloud.lineage(job.status.fine_tuned_model_id)
    assert [node.name for node in graph.nodes] == [job.status.fine_tuned_model]
    assert not graph.edges and not graph.HasField("record")
    assert DIGEST not in str(graph) and job.spec.training_file not in str(graph)
    said = " ".join(graph.notices)
    assert "tuning.fineTuningJobs.get" in said and "billing.reports.get" in said and "base model" in said
    refused = await cloud.refusal(f"{LINEAGE}/ListTrainedModels", parent_id=cloud.project_id, file=DIGEST)
    assert refused.code.name == "PERMISSION_DENIED"
    hidden = await cloud.refusal(f"{LINEAGE}/GetLineage", id=base_id)
    missing = await cloud.refusal(f"{LINEAGE}/GetLineage", id="inferencemodel-e00other")
    assert hidden.code.name == missing.code.name == "NOT_FOUND"


async def test_a_model_of_an_earlier_release_says_what_is_missing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a job left no description, and nothing was kept with its model."""
    monkeypatch.setattr(reconcile_record, "write_record", lambda *_: None)
    job = await cloud.tuned(await add_model(cloud), description=None)
    graph = await cloud.lineage(job.status.fine_tuned_model_id)
    made_by, data = only(graph, LineageNode.JOB), only(graph, LineageNode.DATA_SET)
    assert set(made_by.not_recorded) == {"attempts", "recipe", "settings", "nodes", "checkpoints"}
    assert data.id == job.spec.training_file and set(data.not_recorded) == {"digest", "split"}
    assert facts(made_by)["n_epochs"] == "8" and not graph.HasField("record")
    assert any("earlier release" in text for text in graph.notices)
    found = await cloud.trained_on(job.spec.training_file)
    assert [each.relation for each in found.items] == ["trained on"]
    assert (await cloud.trained_on(DIGEST)).has_unrecorded


HOSTILE = [
    None,
    [],
    {"format": 2},
    {**DESCRIPTION, "recipe": "x", "data": [], "machine": 7, "settings": None, "checkpoints": {"a": 1}},
    {**DESCRIPTION, "seed": 10**30, "settings": {f"k{n}": "v" * 10**5 for n in range(10_000)}},
    {**DESCRIPTION, "checkpoints": [{"step": -(2**70), "time": float("inf")}] * 5000},
    {**DESCRIPTION, "machine": {"nodes": "a\nb\x1b[31m\ud800", "processes": True, "node_count": 1.5}},
    {**DESCRIPTION, "data": {"training": {"sha256": "../../etc/passwd", "rows": float("nan")}}},
]


@pytest.mark.parametrize("document", HOSTILE)
def test_what_a_job_says_of_itself_is_bounded(document: Any) -> None:
    found = read_description(document if isinstance(document, dict) else {})
    if found is None:
        return
    assert len(found.SerializeToString()) < 40_000 and len(found.settings) <= 64
    assert all(text.isprintable() and len(text) <= 200 for text in (found.nodes, *found.settings.values()))
    assert not found.data["training"].sha256 or len(found.data["training"].sha256) == 64
    assert found.seed in (0, 42)


async def test_a_link_in_place_of_the_description_is_not_followed(cloud: Cloud, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(DESCRIPTION))
    base_id = await add_model(cloud)
    job_id = await create_job(cloud, base_id)
    await until(lambda: cloud.pod(job_id) is not None)
    recipes = cloud.recipes(job_id)
    recipes.begin()
    recipes.reach(20)
    (recipes.folder / "lineage.json").symlink_to(secret)
    recipes.succeed()
    model_id = (await cloud.until(job_id, "SUCCEEDED")).status.fine_tuned_model_id
    kept = await cloud.running.store.read(lambda tx: read_record(tx, model_id))
    assert kept is not None and not kept.HasField("description") and kept.training_data.sha256
