"""`--dry-run` and the lists of presets: what something would cost, before it is created. BILL-01."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from neocloud.testing.emulator import Emulator
from tests.real.emulator.test_storage_commands import neo

CLUSTER = ("slurm", "cluster", "create")
SMALL = ("--platform", "cpu-local", "--preset", "1vcpu-4gb")


def test_four_workers_cost_what_a_newcomer_computed_by_hand(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    """4 x (0.012 + 4 x 0.0032) = 0.0992 USD an hour, and the shared root 64 x 0.08 = 5.12 USD a month."""
    name = new_name()
    ran = neo(tmp_path, *CLUSTER, name, *SMALL, "--workers", "4", "--dry-run", cloud=neocloud_emulator)
    assert ran.returncode == 0, ran.stderr
    assert "Costs 0.106214 USD an hour, 77.536 USD a month of 730 hours." in ran.stdout
    assert "nothing was created" in ran.stderr
    answer = neo(
        tmp_path, *CLUSTER, name, *SMALL, "--workers", "4", "--dry-run", "-o", "json", cloud=neocloud_emulator
    )
    price = json.loads(answer.stdout)["price"]
    assert float(price["month"]) == pytest.approx(0.0992 * 730 + 5.12)
    assert "There is no" in neo(tmp_path, "slurm", "cluster", "get", name, cloud=neocloud_emulator).stderr


@pytest.mark.parametrize(
    ("arguments", "costs"),
    [
        (
            ("compute", "disk", "create", "NAME", "--size-gibibytes", "100", "--type", "NETWORK_SSD"),
            "7.1 USD a month",
        ),
        (
            ("compute", "filesystem", "create", "NAME", "--size-gibibytes", "100", "--type", "NETWORK_SSD"),
            "8 USD a month",
        ),
        (("compute", "instance", "create", "NAME", *SMALL), "0.0248"),
    ],
)
def test_what_is_charged_by_the_hour_has_a_price(
    neocloud_emulator: Emulator,
    tmp_path: Path,
    new_name: Callable[[], str],
    arguments: tuple[str, ...],
    costs: str,
) -> None:
    words = [new_name() if word == "NAME" else word for word in arguments]
    ran = neo(tmp_path, *words, "--dry-run", cloud=neocloud_emulator)
    assert ran.returncode == 0, ran.stderr
    if costs.endswith("month"):
        assert costs in ran.stdout
    else:  # the node, and its disk of 10 GiB
        hour = float(re.findall(r"Costs ([0-9.]+) USD an hour", ran.stdout)[0])
        assert hour == pytest.approx(0.0248 + 10 * 0.071 / 730, abs=1e-6)


def test_what_has_no_price_says_so(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    network = neo(tmp_path, "vpc", "network", "create", new_name(), "--dry-run", cloud=neocloud_emulator)
    assert network.returncode == 0 and "It has no price: " in network.stdout
    gpus = ("--platform", "gpu-local", "--preset", "1gpu-2vcpu-8gb")
    cluster = neo(tmp_path, *CLUSTER, new_name(), *gpus, "--dry-run", cloud=neocloud_emulator)
    assert "It has no price: needs gpu-local.gpu, which has no price" in cluster.stdout


def test_a_request_that_would_be_refused_is_refused(
    neocloud_emulator: Emulator, tmp_path: Path, new_name: Callable[[], str]
) -> None:
    name = new_name()
    disk = ("compute", "disk", "create", name, "--size-gibibytes", "1", "--type", "NETWORK_SSD")
    assert neo(tmp_path, *disk, cloud=neocloud_emulator).returncode == 0
    taken = neo(tmp_path, *disk, "--dry-run", cloud=neocloud_emulator)
    assert taken.returncode == 7 and not taken.stdout
    without = neo(
        tmp_path, *disk[:3], f"{name}b", "--size-gibibytes", "1", "--dry-run", cloud=neocloud_emulator
    )
    assert without.returncode == 2 and "--type is required" in without.stderr


def test_platforms_say_what_fits_here_and_what_it_costs(neocloud_emulator: Emulator, tmp_path: Path) -> None:
    listed = neo(tmp_path, "compute", "platform", "list", cloud=neocloud_emulator)
    header, *lines = listed.stdout.splitlines()
    assert header.split()[-4:] == ["NOW", "HOUR", "MONTH", "TITLE"]
    [line] = [line for line in lines if line.startswith("cpu-local ") and " 1vcpu-4gb " in line]
    assert {"0.0248", "18.104"} <= set(line.split())
    [line] = [line for line in lines if line.startswith("gpu-local ") and " 1gpu-2vcpu-8gb " in line]
    assert "no price" in line
