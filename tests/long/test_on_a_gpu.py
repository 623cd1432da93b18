"""scripts/on-a-gpu on a CPU: the parts that one can run, with a tiny model."""

import json
import subprocess
import sys
from pathlib import Path

from tests import ROOT


def test_the_parts_for_a_cpu_run_and_the_others_say_why_not(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    command = [sys.executable, str(ROOT / "scripts" / "on-a-gpu"), "--device", "cpu", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {each["name"]: each for each in json.loads(output.read_text())["parts"]}
    assert found["machine"]["figures"]["torch"]
    assert found["node_checks"]["figures"]["verdicts"]["cpu_sdc"] == "pass"
    trained = found["lora_bf16"]
    assert trained["state"] == "done", trained
    assert trained["figures"]["tokens_per_second"] > 0 and trained["figures"]["mfu"] is None
    assert 0.5 < trained["figures"]["estimate_to_truth"] < 3
    assert found["lora_4bit"]["state"] == "not_run" and "GPUs only" in found["lora_4bit"]["reason"]
    assert found["adapters"]["state"] in ("done", "not_run")
