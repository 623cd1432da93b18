"""Errors on the way to the cloud: each says what happened and what to do next."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli import signals
from neocloud.cli.terminal import EXIT_CODE_MEANINGS, EXIT_CODES
from neocloud.client.profiles import Profile, Profiles, config_file, read_profiles, write_profiles
from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import (
    CLUSTERS,
    EXCHANGE,
    PROJECT,
    FakeServer,
    cluster,
    serve_clusters,
)

LIST = ("slurm", "cluster", "list")


def use(endpoint: str, credentials: Path, **more: str) -> None:
    profile = Profile("test", endpoint, str(credentials), project_id=PROJECT, **more)
    write_profiles(Profiles().with_profile(profile), config_file())


def test_without_a_profile_neo_says_how_to_get_one(neo: Neo) -> None:
    ran = neo(*LIST)
    assert ran.code == 3
    assert (
        ran.err
        == "neo: There is no profile yet. Start a cloud on this machine with `neo up`, or run `neo login`.\n"
    )


def test_when_nothing_answers_neo_says_neo_up(neo: Neo, credentials_file: Path) -> None:
    use("127.0.0.1:1", credentials_file)
    ran = neo(*LIST)
    assert ran.code == 5
    assert (
        ran.err
        == "neo: Nothing answers at 127.0.0.1:1. Start the cloud with `neo up`, or see `neo status`.\n"
    )


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("logs",),
        ("down",),
        ("destroy", "--yes"),
        ("image", "list"),
        ("client-config", "trust"),
        LIST,
    ],
)
def test_a_cloud_of_another_user_is_not_taken_for_a_stopped_one(
    neo: Neo, closed_home: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv("NEOCLOUD_HOME", str(closed_home))
    ran = neo(*command)
    assert ran.code == 4, ran.err
    assert (
        f"neo: {closed_home}/" in ran.err
        and "cannot be read by this user. Run the command as root" in ran.err
    )


def test_a_stopped_cloud_on_this_machine_is_named_by_its_folder(
    neo: Neo, credentials_file: Path, tmp_path: Path
) -> None:
    use("127.0.0.1:1", credentials_file, home=str(tmp_path / "cloud"))
    ran = neo(*LIST)
    assert ran.code == 5
    assert f"The cloud in {tmp_path / 'cloud'} is not running. Start it with `neo up`." in ran.err


def test_an_unknown_profile_lists_the_known_ones(signed_in: Neo) -> None:
    ran = signed_in("--profile", "prod", *LIST)
    assert ran.code == 3
    assert ran.err == "neo: There is no profile named 'prod'. There are: test.\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not json", "it is not JSON"),
        ("{}", "it has no `subject-credentials`"),
        (json.dumps({"subject-credentials": {"kid": "k", "sub": "s"}}), "lacks private-key"),
        (
            json.dumps({"subject-credentials": {"kid": "k", "sub": "s", "private-key": "x", "alg": "none"}}),
            "only RS256",
        ),
    ],
)
def test_a_broken_credentials_file_is_explained(
    neo: Neo, cloud: FakeServer, tmp_path: Path, content: str, said: str
) -> None:
    file = tmp_path / "broken.json"
    file.write_text(content)
    use(cloud.endpoint, file)
    ran = neo(*LIST)
    assert ran.code == 2
    assert said in ran.err


def test_a_key_that_is_none_is_explained_and_not_shown(neo: Neo, cloud: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(json.dumps({"subject-credentials": {"kid": "k", "sub": "s", "private-key": "c2VjcmV0"}}))
    use(cloud.endpoint, file)
    ran = neo(*LIST)
    assert "private key cannot be used" in ran.err
    assert "c2VjcmV0" not in ran.err


def test_refused_credentials_are_denied(signed_in: Neo, cloud: FakeServer) -> None:
    def refuse(request: Any) -> Any:
        raise contract.unauthenticated("The key is not known here.")

    cloud.serve(EXCHANGE, refuse)
    ran = signed_in(*LIST)
    assert ran.code == 4
    assert ran.err == "neo: The key is not known here. Sign in again with `neo login`.\n"


def test_a_token_that_expired_meanwhile_is_renewed_and_the_same_call_repeated(
    signed_in: Neo, cloud: FakeServer
) -> None:
    """With the same idempotency key, so that a change cannot happen twice."""
    serve_clusters(cloud, cluster("bank"))
    cloud.refused_tokens = {"token-1"}
    assert signed_in(*LIST).code == 0
    keys = [headers["x-idempotency-key"] for path, _, headers in cloud.requests if path == f"{CLUSTERS}/List"]
    assert len(keys) == 2
    assert len(set(keys)) == 1


def test_a_second_command_does_not_sign_in_again(signed_in: Neo, cloud: FakeServer, tmp_path: Path) -> None:
    serve_clusters(cloud, cluster("bank"))
    signed_in(*LIST)
    signed_in(*LIST)
    assert cloud.tokens == 1
    [kept] = (tmp_path / "tokens").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_damaged_configuration_says_what_to_do(neo: Neo) -> None:
    config_file().parent.mkdir(parents=True)
    config_file().write_text("profiles: [")
    ran = neo(*LIST)
    assert ran.code == 2
    assert "it is not YAML" in ran.err


def test_login_tries_the_credentials_before_it_writes_a_profile(
    neo: Neo, cloud: FakeServer, credentials_file: Path
) -> None:
    def refuse(request: Any) -> Any:
        raise contract.unauthenticated("The key is not known here.")

    cloud.serve(EXCHANGE, refuse)
    ran = neo("login", "--credentials", str(credentials_file), "--endpoint", cloud.endpoint)
    assert ran.code == 4
    assert not config_file().exists()


def test_login_makes_the_profile_current(neo: Neo, cloud: FakeServer, credentials_file: Path) -> None:
    path = "nebius.iam.v1.ProfileService/Get"
    account = {"metadata": {"name": "ci", "parent_id": PROJECT}}
    answer = {"service_account_profile": {"info": account}}
    cloud.serve(path, contract.from_dict(contract.method(path).output, answer))
    ran = neo("login", "--credentials", str(credentials_file), "--endpoint", cloud.endpoint, "--name", "team")
    assert ran.code == 0, ran.err
    assert read_profiles(config_file()).get().project_id == PROJECT
    assert "team" in neo("config", "profiles").out


def test_profiles_can_be_chosen_and_forgotten(signed_in: Neo) -> None:
    assert signed_in("config", "set-project", "project-e00other").code == 0
    assert (
        json.loads(signed_in("config", "profiles", "-o", "json").out)[0]["project_id"] == "project-e00other"
    )
    assert signed_in("config", "use", "nobody").code == 3
    assert signed_in("config", "remove", "test").code == 0
    assert not config_file().exists()


def test_a_reader_that_goes_away_is_no_error(signed_in: Neo, cloud: FakeServer, user_folders: Path) -> None:
    serve_clusters(cloud, *(cluster(f"bank{number}") for number in range(3000)))
    script = (
        "from neocloud.client import connection; from pathlib import Path; import sys;"
        f"connection.token_folder = lambda: Path({str(user_folders / 'tokens')!r});"
        "from neocloud.cli.main import main; sys.argv[1:] = ['slurm', 'cluster', 'list']; main()"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (0, b"")


def test_every_exit_code_has_a_meaning_in_the_reference() -> None:
    of_signals = {128 + number for number in signals.ENDING}
    assert of_signals | set(EXIT_CODES.values()) < set(EXIT_CODE_MEANINGS)
