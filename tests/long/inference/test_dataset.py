"""The story of runs/dataset.sh on a real cloud: from a bucket to a model that answers, and what it costs."""

import json
import os
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

from neocloud.core.clock import SystemClock
from neocloud.object_store.metering import bucket_usage
from tests.e2e.inference.served import Served, chat
from tests.e2e.tiny_model import ROOT


class Later(SystemClock):
    """A clock for which the hours of the test are over, and so on the bill."""

    def now(self) -> datetime:
        return super().now() + timedelta(hours=2)


def test_data_go_in_and_a_model_comes_out(served: Served, tmp_path: Path) -> None:
    cloud, out = served.cloud, tmp_path / "out"
    neo = f"{ROOT}/.venv/bin:{cloud.environment['PATH']}"
    own = {"OUT": str(out), "BASE": served.name, "EPOCHS": "1", "PATH": neo}
    done = subprocess.run(
        ["bash", str(ROOT / "runs" / "dataset.sh")],
        env={**os.environ, **cloud.environment, **own},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    job = json.loads((out / "job.json").read_text())
    assert job["spec"]["training_file"] == "s3://bank-data/chats/bank.jsonl"
    tuned = job["status"]["fine_tuned_model"]
    pushed = f"{tuned}-pushed"
    source = cloud.neo_json("model", "get", pushed)
    assert source["spec"]["source"]["artifact"]["name"].endswith(f"/bank:{tuned.rpartition('-')[2]}")
    assert source["status"]["artifact_digest"] in done.stdout
    served.wait_for_adapters(tuned, pushed)
    status, answer = chat(served.gateway, pushed, served.token())
    assert status == 200 and answer["model"] == pushed

    now = datetime.now(UTC)
    usage = bucket_usage(cloud.home, Later())
    used = {each.sku: each.count for each in usage([cloud.project_id], now - timedelta(hours=3), now)}
    stored = (out / "bank.jsonl").stat().st_size
    assert used["object-storage.standard"] > 0
    assert used["object-storage.requests.read"] > 0 and used["object-storage.requests.modify"] > 0
    assert used["object-storage.egress-private"] >= stored  # the job is on this machine
    assert used["container-registry.storage"] > 0
    assert used["container-registry.egress-private"] >= int(source["status"]["size_bytes"])
    for name in (tuned, pushed):
        cloud.neo("model", "delete", name, "--yes")
    served.wait_for_adapters()
