"""`neo login`: which profile it writes, what it keeps of others, and which URLs and authorities it takes."""

import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from neocloud.cli import sign_in
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.client.gateway import open_gateway
from neocloud.client.profiles import (
    Profile,
    Profiles,
    config_file,
    read_profiles,
    session_file,
    write_profiles,
)
from neocloud.client.sessions import SIGN_IN, Session, read_session, write_session
from neocloud.client.trust import RemoteCloud, cloud_url, fingerprint
from neocloud.core import contract
from neocloud.server import ensure_certificate
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, TENANT, FakeServer

ALICE = "alice@bank.example"
USERS, BOB = "nebius.iam.v1.TenantUserAccountWithAttributesService", "tenantuseraccount-e00b"
PROFILE = "nebius.iam.v1.ProfileService/Get"
HTTP, GATEWAY = "https://cloud.example:7374", "https://cloud.example:8901"


@pytest.fixture
def people(cloud: FakeServer, monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    """A cloud in which Alice has an account; who signs in need not type the password."""
    method = contract.method(f"{SIGN_IN}/WithPassword")
    answer = {"session_id": "session-e00a", "tenant_id": TENANT, "access_token": "new", "expires_in": 3600}
    cloud.serve(f"{SIGN_IN}/WithPassword", method.output(refresh_token="refresh", **answer))
    who = {"user_profile": {"id": "tenantuseraccount-e00a", "attributes": {"email": ALICE}}}
    cloud.serve(PROFILE, contract.from_dict(contract.method(PROFILE).output, who))
    monkeypatch.setattr(sign_in, "ask_password", lambda words, from_stdin: "secret")
    return cloud


def session(token: str) -> Session:
    return Session("session-e00b", "a", TENANT, "refresh-b", token, datetime.now(UTC).isoformat())


def keep(name: str, endpoint: str, **more: str) -> Profile:
    """Write a profile of a person, with a session."""
    file = session_file(name)
    write_session(file, session(f"token-of-{name}"))
    profile = Profile(name, endpoint, "", session_file=str(file), tenant_id=TENANT, **more)
    write_profiles(read_profiles(config_file()).with_profile(profile), config_file())
    return profile


def test_signing_in_again_keeps_the_gateway(neo: Neo, people: FakeServer) -> None:
    keep("alice", people.endpoint, http_endpoint=HTTP, gateway_endpoint=GATEWAY, project_id=PROJECT)
    ran = neo("login", ALICE, "--project", PROJECT)
    assert ran.code == 0, ran.err
    profile = read_profiles(config_file()).get("alice")
    assert (profile.http_endpoint, profile.gateway_endpoint) == (HTTP, GATEWAY)
    assert read_session(Path(profile.session_file)).access_token == "new"


def test_the_tenant_is_given_by_name_with_a_password(neo: Neo, people: FakeServer) -> None:
    ran = neo("login", ALICE, "--endpoint", people.endpoint, "--project", PROJECT, "--tenant", "risk-bank")
    assert ran.code == 0, ran.err
    (request,) = people.asked("neocloud.iam.v1.SignInService/WithPassword")
    assert request.tenant_id == "risk-bank", "the server finds it among those of the address"
    for option in ("--oidc", "--invitation"):
        ran = neo("login", option, "x", "--endpoint", people.endpoint, "--tenant", "risk-bank")
        assert ran.code == 2 and f"cannot be combined with {option}" in ran.err


def test_the_project_is_given_by_name(neo: Neo, people: FakeServer) -> None:
    path = "nebius.iam.v2.ProjectService/GetByName"

    def by_name(request: Any) -> Any:
        assert request.parent_id == TENANT
        if request.name != "risk":
            raise contract.not_found("project", request.name)
        return contract.from_dict(contract.method(path).output, {"metadata": {"id": PROJECT, "name": "risk"}})

    people.serve(path, by_name)
    ran = neo("login", ALICE, "--endpoint", people.endpoint, "--project", "risk")
    assert ran.code == 0, ran.err
    assert read_profiles(config_file()).get("alice").project_id == PROJECT
    ran = neo("login", ALICE, "--endpoint", people.endpoint, "--project", "nothing")
    assert ran.code != 0 and "There is no project 'nothing'" in ran.err
    assert read_profiles(config_file()).get("alice").project_id == PROJECT, "it is kept"


def test_sessions_of_a_user_are_found_by_e_mail_address(neo: Neo, people: FakeServer) -> None:
    profile = keep("alice", people.endpoint, project_id=PROJECT)
    later = (datetime.now(UTC) + timedelta(hours=12)).isoformat()
    write_session(Path(profile.session_file), replace(session("fresh"), expires_at=later))
    listing = "neocloud.iam.v1.SessionService/List"
    users, revoke = f"{USERS}/List", "nebius.iam.v1.SessionManagementService/Revoke"
    bob = {"tenant_user_account": {"metadata": {"id": BOB}}, "attributes": {"email": "bob@bank.example"}}
    people.serve(users, contract.from_dict(contract.method(users).output, {"items": [bob]}))
    people.serve(listing, contract.method(listing).output())
    people.serve(revoke, contract.method(revoke).output())
    assert neo("session", "list", "--user", "Bob@bank.example").code == 0
    assert people.asked(listing)[0].parent_id == BOB
    assert neo("session", "revoke", "--user", "bob@bank.example").code == 0
    assert neo("session", "revoke", "--all").code == 0
    (one, everything) = people.asked(revoke)
    assert (one.tenant_user_account_id, everything.all_my_active) == (BOB, True)


def test_a_profile_of_another_cloud_is_not_replaced(neo: Neo, people: FakeServer) -> None:
    other = keep("alice", "cloud.example:7370")
    ran = neo("login", ALICE, "--endpoint", people.endpoint, "--project", PROJECT)
    assert ran.code == 0, ran.err
    assert "named alice-127.0.0.1" in ran.err and "alice-127.0.0.1 is now the current" in ran.out
    profiles = read_profiles(config_file())
    assert profiles.get("alice") == other
    assert read_session(Path(other.session_file)).access_token == "token-of-alice"
    assert profiles.get("alice-127.0.0.1").endpoint == people.endpoint


def test_credentials_do_not_replace_the_default_profile_of_another_cloud(
    neo: Neo, people: FakeServer, credentials_file: Path
) -> None:
    local = keep("default", "127.0.0.1:1")
    arguments = ("--credentials", str(credentials_file), "--endpoint", people.endpoint, "--tenant", TENANT)
    ran = neo("login", *arguments, "--project", PROJECT)
    assert ran.code == 0, ran.err
    profiles = read_profiles(config_file())
    assert (profiles.get("default"), profiles.current) == (local, "default-127.0.0.1")


def test_a_sign_in_that_fails_later_leaves_session_and_profile(neo: Neo, people: FakeServer) -> None:
    def fails(request: object) -> None:
        raise contract.not_found("profile", "alice")

    before = keep("alice", people.endpoint, project_id=PROJECT)
    people.serve(PROFILE, fails)
    assert neo("login", ALICE).code != 0
    assert read_session(Path(before.session_file)).access_token == "token-of-alice"
    assert read_profiles(config_file()).get("alice") == before


def test_a_second_name_with_the_host_has_the_port_too() -> None:
    items = {
        name: Profile(name, endpoint, "")
        for name, endpoint in (("a", "x:1"), ("a-h", "h:1"), ("a---1", "y:1"))
    }
    profiles = Profiles("a", items)
    assert sign_in.profile_name(profiles, "a", "x:1") == "a"
    assert sign_in.profile_name(profiles, "a", "h:1") == "a-h"
    assert sign_in.profile_name(profiles, "a", "h:2") == "a-h-2"
    assert sign_in.profile_name(profiles, "b", "h:2") == "b"
    assert sign_in.profile_name(profiles, "a", "[::1]:2") == "a---1-2"


@pytest.mark.parametrize("host", ["cloud..example", "a b", "x" * 64 + ".example", "a\u007fb"])
def test_a_host_that_cannot_be_looked_up_is_a_wrong_url(neo: Neo, host: str) -> None:
    ran = neo("login", f"https://{host}:7374", ALICE)
    assert (ran.code, "is not the URL of a cloud" in ran.err) == (2, True), ran.err


def test_the_path_of_the_authorities_is_stored_whole(
    neo: Neo, people: FakeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []

    def find(url: str, ca_file: str, *_: object) -> RemoteCloud:
        given.append(ca_file)
        raise ClientError("UNAVAILABLE", "no further")

    monkeypatch.setattr(sign_in, "find_cloud", find)
    monkeypatch.chdir(tmp_path)
    neo("login", HTTP, ALICE, "--ca-file", "ca.pem")
    assert given == [str(tmp_path / "ca.pem")]


def test_an_authority_is_confirmed_once_for_a_url(
    neo: Neo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_certificate(tmp_path / "tls", ["localhost"], datetime.now(UTC))
    authority = tmp_path / "tls" / "ca.pem"
    shown = fingerprint(ssl.PEM_cert_to_DER_cert(authority.read_text()))
    answers: list[bool] = []

    def find(url: str, ca_file: str, wanted: str, confirm: Callable[[str], bool]) -> RemoteCloud:
        answers.append(confirm(shown))
        raise ClientError("UNAVAILABLE", "no further")

    monkeypatch.setattr(sign_in, "find_cloud", find)
    keep("alice", "cloud.example:7370", http_endpoint=HTTP, ca_file=str(authority))
    assert cloud_url("https://CLOUD.example") == HTTP
    ran = neo("login", "https://CLOUD.example", ALICE)
    assert answers == [True] and shown not in ran.err
    theirs = ensure_certificate(tmp_path / "theirs", ["localhost"], datetime.now(UTC)).authority
    ours, shown = shown, fingerprint(ssl.PEM_cert_to_DER_cert(theirs.decode()))
    assert shown in neo("login", HTTP, ALICE).err, "another host has the name now"
    shown = ours
    for url in ("https://other.example:7374", "https://cloud.example:7375"):
        ran = neo("login", url, ALICE)
        assert len(answers) == 1 and shown in ran.err and "--fingerprint" in ran.err
    authority.write_text("damaged")
    assert shown in neo("login", HTTP, ALICE).err


def test_a_missing_or_damaged_file_of_authorities_says_so(tmp_path: Path, user_folders: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    damaged.write_text("nothing")
    for file in (damaged, tmp_path / "missing.pem"):
        profile = keep("alice", "cloud.example:7370", gateway_endpoint=GATEWAY, ca_file=str(file))
        with pytest.raises(ClientError, match=r"holds no certificate that can be read"):
            open_gateway(profile)
    with pytest.raises(ClientError, match=r"cannot be read"):
        connect(profile)
