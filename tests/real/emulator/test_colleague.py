"""A colleague with another Unix account of the cloud's machine: from the operator's commands to her work."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.testing.emulator import Emulator, connected, emulator_process
from tests.second_account import Neo, folder, second_account

__all__ = ["folder"]

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only what root runs is announced to others")
ANN = "ann@bank.example"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    home = tmp_path_factory.mktemp("cloud")
    with emulator_process(home), connected(home) as running:
        yield running


@pytest.fixture
def ann(folder: Path) -> Neo:
    return second_account(folder)


def operator(cloud: Emulator, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "neocloud.cli.main", *arguments]
    environment = {**os.environ, **cloud.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def password(cloud: Emulator) -> str:
    """Ann's; she may use one project of two."""
    operator(cloud, "iam", "project", "create", "research")
    operator(cloud, "iam", "group", "create", "quants")
    role = ("--group", "quants", "--resource-id", "research", "--role", "compute.editor")
    operator(cloud, "iam", "access-permit", "create", *role)
    return operator(cloud, "user", "create", ANN, "--group", "quants").stdout.strip()


def test_a_colleague_works_after_one_command(cloud: Emulator, password: str, ann: Neo) -> None:
    assert len(password.split()) == 1, "stdout is the password alone"
    assert cloud.home.stat().st_mode & 0o077 == 0, "the state folder stays closed"
    url = f"http://{cloud.http_endpoint}"
    signed_in = ann("login", url, ANN, "--password-stdin", given=password)
    assert signed_in.returncode == 0, signed_in.stderr
    projects = json.loads(ann("iam", "project", "list", "-o", "json").stdout)
    assert [each["metadata"]["name"] for each in projects] == ["research"]
    assert projects[0]["metadata"]["id"] in signed_in.stdout
    made = ann("compute", "filesystem", "create", "data", "--type", "NETWORK_SSD", "--size-gibibytes", "1")
    assert made.returncode == 0, made.stderr
    listed = ann("compute", "filesystem", "list", "--project", "research", "-o", "json")
    assert [each["metadata"]["name"] for each in json.loads(listed.stdout)] == ["data"]
    chosen = ann("config", "set-project", "research")
    assert chosen.returncode == 0, chosen.stderr
    other = ann("config", "set-project", "default-project")
    assert other.returncode == 3 and "There is no project" in other.stderr
    refused = ann("user", "list")
    assert refused.returncode == 4 and "such as iam.viewer" in refused.stderr
    audit = ann("audit", "list")
    assert audit.returncode == 4 and "such as audit.viewer" in audit.stderr
    chat = ann("chat", "--once", "hi")
    assert "another machine" not in chat.stderr and "has no gateway: it is an emulator" in chat.stderr


def test_after_logout_nobody_is_signed_in(cloud: Emulator, password: str, ann: Neo, folder: Path) -> None:
    url = f"http://{cloud.http_endpoint}"
    for name in ("first", "second"):
        done = ann("login", url, ANN, "--name", name, "--password-stdin", given=password)
        assert done.returncode == 0, done.stderr
    left = ann("logout")
    assert left.returncode == 0 and "No profile is selected now" in left.stderr and "first" in left.stderr
    refused = ann("compute", "disk", "list")
    assert refused.returncode == 3 and "neo config use NAME" in refused.stderr
    assert ann("config", "use", "first").returncode == 0
    assert ann("compute", "disk", "list").returncode == 0
    last = ann("logout")
    assert last.returncode == 0 and "selected" not in last.stderr
    assert "There is no profile yet" in ann("compute", "disk", "list").stderr


def test_a_folder_of_root_is_no_dead_end(cloud: Emulator, password: str, ann: Neo) -> None:
    """NEOCLOUD_HOME names the folder of the cloud, which her account may not enter."""
    home = {"NEOCLOUD_HOME": str(cloud.home)}
    done = ann("login", ANN, "--password-stdin", given=password, **home)
    assert done.returncode == 0, done.stderr


def test_an_operator_adds_her_by_her_address(cloud: Emulator, password: str) -> None:
    operator(cloud, "iam", "group", "create", "readers")
    operator(cloud, "user", "add-to-group", ANN, "readers")
    operator(cloud, "user", "remove-from-group", ANN, "readers")
    operator(cloud, "iam", "group-membership", "create", "--group", "readers", "--member-id", ANN.upper())
    members = ("iam", "group-membership", "list-members", "--parent-id", "readers")
    listed = operator(cloud, *members, "-o", "json")
    assert len(json.loads(listed.stdout)) == 1


def test_capacity_says_how_many_fit_and_what_one_costs(cloud: Emulator) -> None:
    rows = json.loads(operator(cloud, "capacity", "-o", "json").stdout)
    (small,) = [each for each in rows if (each["platform"], each["preset"]) == ("cpu-local", "1vcpu-4gb")]
    assert int(small["fit_now"]) > 0
    assert 0 < float(small["hour"]) < float(small["month"])
