"""The parts of a host: read from a tree and a stand-in for NVML, handed over, and compared."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from neocloud.fleet.agent.document import MOST_BYTES, DocumentError
from neocloud.fleet.agent.hardware import (
    MOST_PARTS,
    Hardware,
    decode,
    differences,
    encode,
    read,
    shared_serials,
)
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.nodes.parts import HostPart, named
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Node

GPU = HostPart("gpu", "0000:18:00.0", "NVIDIA H100 80GB HBM3", "1650000000000", "96.00.00.00.01")
DISK = HostPart("nvme", "nvme0", "SAMSUNG MZQL27T6", "S6CK1", "GDC5602Q")
HOST = Hardware("node-1", "boot-1", [GPU, DISK], [])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    trees.write(
        root,
        {
            "proc/sys/kernel/random/boot_id": trees.BOOT,
            "proc/cpuinfo": "processor\t: 0\nphysical id\t: 0\nmodel name\t: Xeon 8480\nmicrocode\t: 0x2b\n\n"
            "processor\t: 1\nphysical id\t: 1\nmodel name\t: Xeon 8480\nmicrocode\t: 0x2c\n",
            "sys/class/dmi/id/product_name": "XE9680",
            "sys/class/dmi/id/product_serial": "ABC123",
            "sys/class/dmi/id/bios_version": "2.1.5",
            "sys/class/dmi/id/board_name": "0W7K",
            "sys/class/dmi/id/board_serial": "To be filled by O.E.M.",
            "sys/class/nvme/nvme0/model": "SAMSUNG MZQL27T6   ",
            "sys/class/nvme/nvme0/serial": "S6CK1\x1b[31m",
            "sys/class/nvme/nvme0/firmware_rev": "GDC5602Q",
            "sys/class/infiniband/mlx5_0/hca_type": "MT4129",
            "sys/class/infiniband/mlx5_0/node_guid": "e8eb:d303:00aa:0001",
            "sys/class/infiniband/mlx5_0/fw_ver": "28.39.1002",
            "sys/class/net/eth0/device/vendor": "0x8086",
            "sys/class/net/eth0/device/device": "0x1593",
            "sys/class/net/eth0/address": "02:00:00:00:00:01",
            "sys/class/net/br0/address": "02:00:00:00:00:02",
        },
    )
    return root


def test_parts_are_read_from_the_files_of_a_host(tree: Path) -> None:
    found = {(each.kind, each.slot): each for each in read(Tree(tree), "node-1").parts}
    assert found["system", "host"] == HostPart("system", "host", "XE9680", "ABC123", "2.1.5")
    assert found["board", "host"].serial == "", "what a maker writes who does not number boards"
    assert [found["cpu", f"socket {n}"].firmware for n in (0, 1)] == ["0x2b", "0x2c"]
    assert found["nvme", "nvme0"] == HostPart("nvme", "nvme0", "SAMSUNG MZQL27T6", "S6CK1[31m", "GDC5602Q")
    assert found["hca", "mlx5_0"].firmware == "28.39.1002"
    assert found["nic", "eth0"].model == "8086:1593"
    assert ("nic", "br0") not in found


def test_the_serial_number_of_the_host_is_for_root_alone(tree: Path) -> None:
    (tree / "sys/class/dmi/id/product_serial").unlink()
    assert "system serial" in [each.check for each in read(Tree(tree), "node-1").not_run]


def inventory(node: Node) -> Hardware:
    ran = subprocess.run(
        node.command("inventory", "--root", str(node.root)),
        env=node.environment, capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    return decode(ran.stdout)


def test_gpus_have_serial_number_and_firmware_and_one_that_fails_is_named(node: Node) -> None:
    node.gpus("", "handle 15")
    found = inventory(node)
    (gpu,) = [each for each in found.parts if each.kind == "gpu"]
    assert gpu == GPU._replace(firmware="96.00.00.00.01 G520.0200.00.05")
    assert [each.check for each in found.not_run] == ["gpu 1"]
    assert found.simulated


def test_a_gpu_without_a_serial_number_is_known_by_its_uuid(node: Node) -> None:
    node.gpus("fail nvmlDeviceGetSerial 3")
    (gpu,) = [each for each in inventory(node).parts if each.kind == "gpu"]
    assert gpu.serial.startswith("GPU-")


def test_a_failing_check_names_the_part_by_its_serial_number(node: Node) -> None:
    """GPUs are a stand-in for NVML."""
    node.gpus("", "remap_failed 1", "")
    verdict, parts = node.verdicts()["row_remap_failed"], inventory(node).parts
    assert verdict.status == "fail" and [each.serial for each in named(verdict.devices, parts)] == [
        "1650000000001"
    ]
    healthy = node.verdicts()["ecc_uncorrected"]
    assert healthy.status == "pass" and not healthy.devices


def test_a_driver_that_hangs_does_not_hide_the_other_parts(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.gpus("hang nvmlDeviceGetName")
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    script = (
        "import sys; from pathlib import Path; from neocloud.fleet.agent import hardware\n"
        "from neocloud.fleet.agent.host_files import Tree\n"
        "hardware.DEADLINE_S = 1.0\n"
        "sys.stdout.buffer.write(hardware.encode(hardware.read(Tree(Path(sys.argv[1])), 'node-1')))"
    )
    command = [node.command("check")[0], "-c", script, str(node.root)]
    found = decode(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert [each.check for each in found.not_run if "no answer" in each.why or "1 s" in each.why] == ["gpus"]
    assert "nvme" in {each.kind for each in found.parts}


def test_a_list_is_read_as_it_was_written() -> None:
    assert decode(encode(HOST)) == HOST


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b" " * (MOST_BYTES + 1),
        b"{}",
        b"null",
        json.dumps({**json.loads(encode(HOST)), "more": 1}).encode(),
        json.dumps({**json.loads(encode(HOST)), "format": 99}).encode(),
        json.dumps({**json.loads(encode(HOST)), "host": "\x1b[2J"}).encode(),
        json.dumps({**json.loads(encode(HOST)), "parts": [{"kind": "gpu"}]}).encode(),
        json.dumps({**json.loads(encode(HOST)), "parts": [DISK._asdict()] * (MOST_PARTS + 1)}).encode(),
    ],
)
def test_a_list_that_a_host_made_up_is_refused(data: bytes) -> None:
    with pytest.raises(DocumentError):
        decode(data)


def changes(*parts: HostPart) -> list[tuple[str, str]]:
    return [(each.part.serial, each.what) for each in differences(HOST, replace(HOST, parts=parts))]


def test_the_same_parts_are_no_change() -> None:
    assert changes(DISK, GPU) == []


def test_a_part_that_was_replaced_is_one_removed_and_one_added() -> None:
    new = GPU._replace(serial="1650000000009")
    assert changes(new, DISK) == [(GPU.serial, "removed"), (new.serial, "added")]


def test_firmware_and_slot_are_told_with_what_they_were() -> None:
    assert changes(GPU._replace(firmware="96.00.00.00.02"), DISK) == [
        (GPU.serial, "firmware 96.00.00.00.01 before")
    ]
    assert changes(GPU, DISK._replace(slot="nvme3")) == [(DISK.serial, "in nvme0 before")]


def test_two_hosts_with_one_serial_number_are_named() -> None:
    other = Hardware("node-2", "boot-9", [GPU, DISK._replace(serial="")])
    nameless: dict[str, Any] = {"parts": [DISK._replace(serial="")]}
    hosts = [HOST, other, Hardware("node-3", "boot-4", **nameless), HOST]
    assert shared_serials(hosts) == {("gpu", GPU.serial): ["node-1", "node-2"]}
