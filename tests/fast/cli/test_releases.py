"""The command line meets a server of another release; tests/fast/server has a real one."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud import __version__
from neocloud.cli import sign_in
from neocloud.cli.commands import status
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.client.profiles import Profile, Profiles, config_file, session_file, write_profiles
from neocloud.client.sessions import SIGN_IN, Session, write_session
from neocloud.core import contract
from neocloud.core.releases import HEADER
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import (
    CLUSTERS,
    EXCHANGE,
    PROJECT,
    TENANT,
    FakeServer,
    cluster,
    serve_clusters,
)

FAR = "7.5.1"
LIST = ("slurm", "cluster", "list")


def test_every_call_names_the_version_of_neo(signed_in: Neo, cloud: FakeServer) -> None:
    serve_clusters(cloud, cluster("bank"))
    assert signed_in(*LIST).code == 0, "a server that names no version is not refused"
    for path in (EXCHANGE, f"{CLUSTERS}/List"):
        assert cloud.headers(path)[HEADER] == __version__


@pytest.mark.parametrize("version", [__version__, "no version", "7" * 5000])
def test_a_server_of_this_release_or_of_none_is_not_refused(
    signed_in: Neo, cloud: FakeServer, version: str
) -> None:
    cloud.version = version
    serve_clusters(cloud, cluster("bank"))
    ran = signed_in(*LIST)
    assert (ran.code, ran.err) == (0, "")


def test_a_server_of_a_far_release_is_refused_whatever_it_answers(signed_in: Neo, cloud: FakeServer) -> None:
    cloud.version = FAR
    serve_clusters(cloud, cluster("bank"))
    ran = signed_in(*LIST)
    assert (ran.code, ran.out) == (1, "")
    assert "the cloud runs release 7.5" in ran.err and "pip install 'neocloud==7.5.*'" in ran.err


def test_a_refused_sign_in_does_not_ask_for_a_code(
    neo: Neo, cloud: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: object) -> None:
        raise contract.ApiError(contract.Code.FAILED_PRECONDITION, "of another release")

    cloud.version = FAR
    cloud.serve(f"{SIGN_IN}/WithPassword", refuse)
    monkeypatch.setattr(sign_in, "ask_password", lambda words, from_stdin: "secret")
    ran = neo("login", "alice@bank.example", "--endpoint", cloud.endpoint)
    assert ran.code == 1 and "pip install" in ran.err
    assert "authenticator" not in ran.err + ran.out


def test_signing_out_is_never_refused(neo: Neo, cloud: FakeServer) -> None:
    cloud.version = FAR
    path = f"{SIGN_IN}/SignOut"
    cloud.serve(path, contract.method(path).output())
    file = session_file("alice")
    write_session(file, Session("s", "a", TENANT, "r", "t", datetime.now(UTC).isoformat()))
    profile = Profile("alice", cloud.endpoint, "", session_file=str(file))
    write_profiles(Profiles().with_profile(profile), config_file())
    ran = neo("logout")
    assert (ran.code, ran.err) == (0, "")
    assert HEADER not in cloud.headers(path)


def test_status_is_never_refused_and_warns(
    neo: Neo,
    cloud: FakeServer,
    credentials_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = tmp_path / "cloud"
    home.mkdir(mode=0o700)
    ids = {"endpoint": cloud.endpoint, "tenant-id": TENANT, "project-id": PROJECT}
    credentials = json.loads(credentials_file.read_text()) | ids
    (home / "credentials.json").write_text(json.dumps(credentials))
    server = RunningServer(1, cloud.endpoint, "127.0.0.1:1", FAR, datetime.now(UTC))
    monkeypatch.setattr(Home, "server", lambda self: server)
    monkeypatch.setattr("neocloud.client.connection.live_endpoint", lambda profile: cloud.endpoint)
    monkeypatch.setattr(status, "get_json", lambda *_: {"services": ["slurm"]})
    cloud.version = FAR
    serve_clusters(cloud, cluster("bank"))
    ran = neo("status", "--home", str(home))
    assert ran.code == 0, ran.err
    assert "slurmcluster-e00bank" in ran.out
    assert "the cloud runs release 7.5" in " ".join(ran.err.split())
    assert HEADER not in cloud.headers(EXCHANGE) and HEADER not in cloud.headers(f"{CLUSTERS}/List")
