"""Profiles survive a round trip through their file, and the file never holds half of them."""

from pathlib import Path

import pytest

from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, Profiles, read_profiles, write_profiles

LOCAL = Profile(
    "default", "127.0.0.1:7370", "/state/credentials.json", home="/state", project_id="project-e00a"
)
TEAM = Profile("team", "cloud.example:7370", "/keys/team.json")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "neocloud" / "config.yaml"


def test_profiles_survive_a_round_trip(file: Path) -> None:
    profiles = Profiles().with_profile(LOCAL).with_profile(TEAM)
    write_profiles(profiles, file)
    assert read_profiles(file) == profiles
    assert file.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in file.parent.iterdir()] == ["config.yaml"]


def test_without_a_file_there_are_no_profiles(file: Path) -> None:
    assert read_profiles(file) == Profiles()


def test_the_last_one_written_is_current_until_another_is_chosen() -> None:
    profiles = Profiles().with_profile(LOCAL).with_profile(TEAM)
    assert profiles.get() == TEAM
    assert profiles.using("default").get() == LOCAL


def test_forgetting_the_current_profile_makes_another_one_current() -> None:
    assert Profiles().with_profile(LOCAL).with_profile(TEAM).without("team").get() == LOCAL


def test_forgetting_the_last_profile_removes_the_file(file: Path) -> None:
    write_profiles(Profiles().with_profile(LOCAL), file)
    write_profiles(read_profiles(file).without("default"), file)
    assert not file.exists()


@pytest.mark.parametrize("content", ["- a\n", "profiles: {a: {endpoint: x}}\n", "profiles: {a: 3}\n", "\x00"])
def test_a_file_of_another_form_is_refused_with_its_name(file: Path, content: str) -> None:
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(ClientError, match=str(file)):
        read_profiles(file)


def test_keys_of_a_newer_version_are_left_alone(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("current: a\nprofiles: {a: {endpoint: x, credentials_file: y, colour: blue}}\n")
    assert read_profiles(file).get() == Profile("a", "x", "y")
