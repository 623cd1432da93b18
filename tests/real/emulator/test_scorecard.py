"""`neo fleet scorecard` of an emulator in a process of its own: what it keeps counts, and no more."""

import json
from pathlib import Path

from neocloud.testing.emulator import Emulator
from tests.real.emulator.test_storage_commands import neo


def test_an_emulator_is_rated_by_its_records_alone(neocloud_emulator: Emulator, tmp_path: Path) -> None:
    key = tmp_path / "key.pub"
    key.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJ0W1Zyq5dCkqfM0oYH0sV2mJ9m0Xj5c1yqv8bX9b3d test\n")
    made = neo(
        tmp_path,
        *("slurm", "cluster", "create", "rated", "--workers", "1", "--ssh-key", str(key)),
        cloud=neocloud_emulator,
    )
    assert made.returncode == 0, made.stderr
    ran = neo(tmp_path, "fleet", "scorecard", "-o", "json", cloud=neocloud_emulator)
    assert ran.returncode == 0, ran.stderr
    found = {each["id"]: each for each in json.loads(ran.stdout)["criteria"]}
    assert found["SEC-8"]["score"] == "partial" and found["SEC-8"]["evidence"][0]["at"]
    (words,) = found["ORC-1"]["evidence"]
    assert words["score"] == "not_run" and words["text"].startswith("emulated, nothing of it is real: 1 of")
    assert found["ORC-3"]["score"] == "fail"
    assert [each["id"] for each in found.values() if each["score"] == "partial"] == ["SEC-8"]
    deleted = neo(tmp_path, "slurm", "cluster", "delete", "rated", "--yes", cloud=neocloud_emulator)
    assert deleted.returncode == 0, deleted.stderr
