"""AIS-13: a file becomes a model that is called by its name, although its pod is killed."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import run
from tests.e2e.cluster import Cluster
from tests.e2e.inference.served import Served, chat
from tests.e2e.tiny_model import RECIPES

JOBS = "neocloud.tuning.v1.FineTuningJobService"
SHAPE = ("--platform", "cpu-local", "--preset", "1vcpu-2gb")
STATE = contract.enum("neocloud.tuning.v1.FineTuningJobStatus.State")


def newest_job(served: Served) -> Any:
    return served.cloud.call(f"{JOBS}/List", {"parent_id": served.cloud.project_id}).items[-1]


def the_job(served: Served, job_id: str) -> Any:
    return served.cloud.call(f"{JOBS}/Get", {"id": job_id})


def ask(served: Served, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {served.token()}"}
    url = f"{served.gateway}/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=60, trust_env=False)


def state_of(served: Served, job_id: str) -> str:
    return STATE.Name(the_job(served, job_id).status.state)


def wait_until_ended(served: Served, job_id: str) -> None:
    ends = ("SUCCEEDED", "FAILED")
    wait_until(lambda: state_of(served, job_id) in ends, "the job has ended", seconds=480)


def lineage_when(served: Served, name: str, kind: str) -> Any:
    """Return the lineage of a model once it has a node of this type."""
    found: list[Any] = []

    def has_node() -> bool:
        found.append(json.loads(served.cloud.neo("model", "lineage", name, "--output", "json").stdout))
        return any(node["type"] == kind for node in found[-1]["nodes"])

    wait_until(has_node, f"there is a node {kind}")
    return found[-1]


@pytest.mark.long
def test_a_job_whose_pod_is_killed_ends_in_a_model_that_answers(served: Served, tmp_path: Path) -> None:
    cloud, data = served.cloud, tmp_path / "bank.csv"
    run([sys.executable, RECIPES / "make_dataset.py", "--output", data])
    cloud.neo("tune", str(data), "--base", "tiny", "--suffix", "bank", "--epochs", "2", "--no-follow", *SHAPE)
    job_id = newest_job(served).metadata.id

    def has_checkpoint() -> bool:
        job = the_job(served, job_id)
        assert STATE.Name(job.status.state) not in ("FAILED", "SUCCEEDED"), job.status
        return bool(cloud.call(f"{JOBS}/ListCheckpoints", {"id": job_id}).items)

    wait_until(has_checkpoint, "a checkpoint is written", seconds=400)
    cloud.podman("kill", "--signal", "KILL", f"{job_id}.train.recipes")
    wait_until_ended(served, job_id)
    job = the_job(served, job_id)
    log = cloud.neo("tuning", "job", "logs", job_id).stdout
    assert STATE.Name(job.status.state) == "SUCCEEDED", f"{job.status}\n{log}"
    assert "resuming from" in log
    found = job.status.evaluation
    assert found.fine_tuned_perplexity < 0.9 * found.base_perplexity
    said = cloud.neo("tuning", "job", "events", job_id).stdout
    assert "Attempt 2 continues from the newest checkpoint." in said

    name = job.status.fine_tuned_model
    served.wait_for_adapters(name)
    status, answer = chat(served.gateway, name, served.token())
    assert status == 200, answer
    assert answer["model"] == name
    graph = lineage_when(served, name, "TOKENS")
    facts = {(node["type"], each["name"]): each["value"] for node in graph["nodes"] for each in node["facts"]}
    assert facts["DEPLOYMENT", "runs_on"] and facts["JOB", "attempts"] == "2" and facts["JOB", "recipe"]
    [data_set] = [node for node in graph["nodes"] if node["type"] == "DATA_SET"]
    assert data_set["digest"] == graph["record"]["training_data"]["sha256"] and "not_recorded" not in data_set
    assert any(node["type"] == "CHECKPOINT" and node["state"] == "kept" for node in graph["nodes"])
    listed = json.loads(cloud.neo("model", "list", "--trained-on", data_set["id"], "-o", "json").stdout)
    assert [each["metadata"]["name"] for each in listed] == [name]
    cloud.neo("tuning", "job", "delete", job_id, "--yes")
    assert chat(served.gateway, name, served.token())[0] == 200, "the model outlives its job"
    cloud.neo("model", "delete", name)
    served.wait_for_adapters()


@pytest.mark.long
def test_a_job_on_two_nodes_is_paused_and_ends_in_a_model_that_a_call_wakes(
    served: Served, bank: Cluster, tmp_path: Path
) -> None:
    """Scaling from and to zero is in here because it falls asleep while the job trains."""
    cloud, data = served.cloud, tmp_path / "bank.csv"
    bank.wait_until_idle()
    cloud.neo("deployment", "scale", "tiny", "0..1", "--idle", "1")
    run([sys.executable, RECIPES / "make_dataset.py", "--output", data, "--conversations", "200"])
    place = ("--on-slurm", "bank", "--nodes", "2", "--no-follow")
    cloud.neo("tune", str(data), "--base", "tiny", "--suffix", "nodes", "--epochs", "1", *place)
    job_id = newest_job(served).metadata.id
    wait_until(lambda: the_job(served, job_id).status.step, "it has taken a step", seconds=400)
    cloud.neo("tuning", "job", "pause", job_id)
    assert state_of(served, job_id) == "PAUSED"
    events = cloud.neo("tuning", "job", "events", job_id).stdout
    assert "Stopped; it continues from checkpoint-" in events
    cloud.neo("tuning", "job", "resume", job_id)
    wait_until_ended(served, job_id)
    job = the_job(served, job_id)
    log = cloud.neo("tuning", "job", "logs", job_id).stdout
    assert STATE.Name(job.status.state) == "SUCCEEDED", f"{job.status}\n{log}"
    assert "resuming from" in log
    assert job.status.evaluation.fine_tuned_perplexity < job.status.evaluation.base_perplexity
    name = job.status.fine_tuned_model
    wait_until(lambda: served.state == "ASLEEP", "nobody called, so it sleeps", seconds=300)
    assert not served.deployment.status.replicas
    answers: list[httpx.Response] = []

    def is_known() -> bool:
        """The name is there when what came out of the job has been looked at."""
        answers.append(ask(served, name))
        return answers[-1].status_code != 404

    wait_until(is_known, "the new model is known")
    cold = answers[-1]
    assert cold.status_code == 503 and int(cold.headers["retry-after"]) > 0, cold.text
    wait_until(lambda: ask(served, name).status_code == 200, "it answers by its adapter", seconds=480)
    cloud.neo("deployment", "scale", "tiny", "1")
    folder = f"/home/shared/tuning/{job.metadata.id}"
    assert bank.try_ssh(f"ls {folder}/job.json").returncode == 0
    cloud.neo("tuning", "job", "delete", job.metadata.id, "--yes")
    wait_until(lambda: bank.try_ssh(f"ls {folder}").returncode != 0, "its folder is gone from the cluster")
    cloud.neo("model", "delete", name)
    served.wait_for_adapters()


def test_a_bad_line_is_told_with_its_number(served: Served, tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    good = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}\n'
    data.write_text(good * 3 + '{"messages": []}\n')
    refused = served.cloud.neo("tune", str(data), "--base", "tiny", *SHAPE, code=None)
    assert refused.returncode != 0 and "Line 4" in refused.stderr


@pytest.mark.long
def test_a_job_on_preferences_ends_in_a_model_that_answers(served: Served, tmp_path: Path) -> None:
    """The shared root has what the method needs, and the adapter is served as any other."""
    rows = [
        {"prompt": f"May I block card {number}?", "chosen": "You may.", "rejected": "No."}
        for number in range(20)
    ]
    data = tmp_path / "preferences.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (
        "--base",
        "tiny",
        "--method",
        "dpo",
        "--suffix",
        "kind",
        "--epochs",
        "2",
        "--no-follow",
        *SHAPE,
    )
    served.cloud.neo("tune", str(data), *options)
    job_id = newest_job(served).metadata.id
    wait_until_ended(served, job_id)
    job = the_job(served, job_id)
    log = served.cloud.neo("tuning", "job", "logs", job_id).stdout
    assert STATE.Name(job.status.state) == "SUCCEEDED", f"{job.status}\n{log}"
    events = served.cloud.call(f"{JOBS}/ListEvents", {"id": job_id, "page_size": 1000}).items
    margins = [json.loads(each.data)["reward_margin"] for each in events if each.data]
    assert len(margins) > 2 and margins[-1] > margins[0]
    name = job.status.fine_tuned_model
    served.wait_for_adapters(name)
    assert ask(served, name).status_code == 200
    served.cloud.neo("tuning", "job", "delete", job_id, "--yes")
    served.cloud.neo("model", "delete", name)
    served.wait_for_adapters()
