"""`neo user invite` prints the command with which the invited person signs in, from where they are."""

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.cli.machine.home import Home, RunningServer
from neocloud.client.profiles import config_file, read_profiles, write_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, operation

INVITATIONS, USERS = "nebius.iam.v1.InvitationService", "neocloud.iam.v1.UserService"


@pytest.fixture
def inviting(signed_in: Neo, cloud: FakeServer) -> Neo:
    cloud.serve(f"{INVITATIONS}/Create", operation("invitation-e00i"))
    cloud.serve(f"{INVITATIONS}/Get", contract.method(f"{INVITATIONS}/Get").output())
    issued = contract.method(f"{USERS}/IssueInvitationCode").output(code="CODE")
    cloud.serve(f"{USERS}/IssueInvitationCode", issued)
    return signed_in


def invite(neo: Neo) -> str:
    ran = neo("user", "invite", "bob@bank.example")
    assert ran.code == 0, ran.err
    return ran.out.strip()


def change_profile(**values: str) -> None:
    profiles = read_profiles(config_file())
    write_profiles(profiles.with_profile(replace(profiles.get(), **values)), config_file())


def test_to_a_cloud_that_this_machine_alone_reaches(inviting: Neo, cloud: FakeServer) -> None:
    assert invite(inviting) == f"neo login --endpoint {cloud.endpoint} --invitation CODE"


def test_to_a_cloud_on_another_machine(inviting: Neo) -> None:
    change_profile(http_endpoint="https://cloud.example:7374")
    assert invite(inviting) == "neo login https://cloud.example:7374 --invitation CODE"


def test_to_a_cloud_of_this_machine_that_others_reach(
    inviting: Neo, cloud: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "state"
    home.mkdir()
    (home / "server.json").write_text(json.dumps({"grpc": cloud.endpoint}))
    server = RunningServer(
        *(os.getpid(), cloud.endpoint, "", "0.1.0", datetime.now(UTC)), listen=("192.0.2.7",), https_port=7374
    )
    monkeypatch.setattr(Home, "server", lambda self: server)
    change_profile(home=str(home))
    assert invite(inviting) == "neo login https://192.0.2.7:7374 --invitation CODE"
