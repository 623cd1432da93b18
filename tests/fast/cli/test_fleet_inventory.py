"""`neo fleet inventory`: the parts of a host, and what changed in it."""

import json
from pathlib import Path

import pytest

from tests.fast.cli.conftest import in_own_process
from tests.fast.fleet.agent import trees

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = trees.h100_node(tmp_path / "root")
    trees.write(
        root, {"sys/class/nvme/nvme0/serial": "S6CK1", "sys/class/nvme/nvme0/firmware_rev": "GDC5602Q"}
    )
    return root


def saved(root: Path, to: Path, **changes: object) -> Path:
    ran = in_own_process("fleet", "inventory", "--root", str(root), "--output", "json")
    assert ran.returncode == 0, ran.stderr
    to.write_text(json.dumps(json.loads(ran.stdout) | changes))
    return to


def test_parts_are_a_table_that_says_what_is_not_real(root: Path) -> None:
    ran = in_own_process("fleet", "inventory", "--root", str(root))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[0].split() == ["KIND", "SLOT", "MODEL", "SERIAL", "FIRMWARE"]
    assert "S6CK1" in ran.stdout and "GDC5602Q" in ran.stdout
    assert "Simulated: files below" in ran.stderr


def test_other_firmware_is_told_and_ends_with_1(root: Path, tmp_path: Path) -> None:
    before = saved(root, tmp_path / "before.json")
    same = in_own_process("fleet", "inventory", "--root", str(root), "--compare", str(before))
    assert same.returncode == 0 and "0 changes; 0 serial numbers in two hosts" in same.stderr
    trees.write(root, {"sys/class/nvme/nvme0/firmware_rev": "GDC5702Q"})
    ran = in_own_process("fleet", "inventory", "--root", str(root), "--compare", str(before))
    assert ran.returncode == 1
    assert "firmware GDC5602Q before" in ran.stdout and "1 change" in ran.stderr


def test_a_serial_number_in_two_hosts_is_told_and_ends_with_1(root: Path, tmp_path: Path) -> None:
    other = saved(root, tmp_path / "other.json", host="node-2")
    ran = in_own_process(
        "fleet", "inventory", "--root", str(root), "--compare", str(other), "--output", "json"
    )
    assert ran.returncode == 1
    found = json.loads(ran.stdout)
    assert found["changed"] == []
    assert "S6CK1" in [each["serial"] for each in found["in_two_hosts"]]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 1}'])
def test_a_file_that_is_no_inventory_is_refused_by_name(root: Path, tmp_path: Path, content: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    ran = in_own_process("fleet", "inventory", "--root", str(root), "--compare", str(tmp_path / "bad.json"))
    assert ran.returncode != 0
    assert "bad.json" in ran.stderr and "Traceback" not in ran.stderr
