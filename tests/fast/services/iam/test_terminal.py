"""Commands that people type, against the real server: neo login, logout, whoami, user, session. IAM-01."""

import asyncio
import io
import json
import stat
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from neocloud.cli.main import run
from neocloud.client.profiles import Profile, Profiles, config_file, read_profiles, write_profiles
from neocloud.core import contract
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.people import ALICE, PASSWORD, make_user, profile
from tests.fast.services.iam.provider import running_provider
from tests.fast.services.iam.test_oidc import federate

CACHE = contract.cache_path().parents[1]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Neo = Callable[..., Awaitable[Ran]]


@pytest.fixture
def neo(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Neo:
    """A command line of somebody who has the operator's profile."""
    for variable in ("NEOCLOUD_HOME", "NEOCLOUD_PROFILE", "NEBIUS_IAM_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(CACHE))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("neocloud.client.connection.token_folder", lambda: tmp_path / "tokens")
    credentials = tmp_path / "credentials.json"
    credentials.write_text(json.dumps(dict(cloud.bank.credentials)))
    operator = Profile(
        "operator",
        cloud.address,
        str(credentials),
        tenant_id=cloud.bank.tenant_id,
        project_id=cloud.bank.project_id,
    )
    write_profiles(Profiles().with_profile(operator), config_file())

    async def call(*arguments: str, typed: str = "") -> Ran:
        capfd.readouterr()
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = await asyncio.to_thread(run, arguments)
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


async def log_in(neo: Neo, *more: str) -> Ran:
    ran = await neo("login", ALICE, "--password-stdin", *more, typed=f"{PASSWORD}\n")
    assert ran.code == 0, ran.err
    return ran


async def test_from_user_create_to_logout(cloud: Cloud, neo: Neo) -> None:
    ran = await neo("user", "create", ALICE, "--group", "viewers", "--name", "Alice")
    assert ran.code == 0, ran.err
    password = ran.out.splitlines()[-1]
    ran = await neo("login", ALICE, "--password-stdin", typed=f"{password}\n")
    assert (ran.code, ALICE in ran.out, cloud.bank.project_id in ran.out) == (0, True, True), ran
    ran = await neo("whoami")
    assert ALICE in ran.out and cloud.bank.tenant_id in ran.out
    listed = await neo("user", "list")
    assert "Alice" in listed.out and "ACTIVE" in listed.out
    denied = await neo("user", "create", "bob@bank.example")
    assert denied.code == 4
    sessions = await neo("session", "list", "-o", "json")
    assert [item["spec"]["method"] for item in json.loads(sessions.out)] == ["PASSWORD"]
    token = (await neo("session", "token")).out.strip()
    assert (await profile(cloud, token)).status == 200
    file = Path(read_profiles(config_file()).get("alice").session_file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert password not in file.read_text() + config_file().read_text()
    ran = await neo("logout")
    assert (ran.code, file.exists()) == (0, False)
    assert read_profiles(config_file()).current == "", "no profile becomes current by surprise"
    assert (await cloud.store.read(lambda tx: tx.list("neocloud.iam.v1.Session")))[0] == []


async def test_a_wrong_password_says_so_and_leaves_no_profile(cloud: Cloud, neo: Neo) -> None:
    await make_user(cloud)
    ran = await neo("login", ALICE, "--password-stdin", typed="wrong\n")
    assert (ran.code, "is wrong" in ran.err) == (4, True)
    assert set(read_profiles(config_file()).items) == {"operator"}


async def test_a_revoked_session_says_how_to_go_on(cloud: Cloud, neo: Neo) -> None:
    await make_user(cloud)
    await log_in(neo)
    ran = await neo("--profile", "operator", "session", "revoke", "--user", await account_id(neo))
    assert ran.code == 0, ran.err
    cloud.clock.offset += cloud.clock.offset.resolution * 2_000_000
    ran = await neo("whoami")
    assert (ran.code, "Sign in again with `neo login`" in ran.err) == (4, True), ran


async def test_two_commands_at_once_share_one_refresh(cloud: Cloud, neo: Neo) -> None:
    """Each refresh token works once; the second of two commands must not be taken for a thief."""
    await make_user(cloud)
    await log_in(neo)
    file = Path(read_profiles(config_file()).get("alice").session_file)
    stale = json.loads(file.read_text()) | {"access_token": ""}
    file.write_text(json.dumps(stale))
    ran = await asyncio.gather(*(asyncio.to_thread(run, ("whoami",)) for _ in range(4)))
    assert ran == [0, 0, 0, 0]
    assert (await neo("whoami")).code == 0


async def test_an_invitation_from_one_terminal_to_another(cloud: Cloud, neo: Neo) -> None:
    ran = await neo("user", "invite", "bob@bank.example", "--group", "viewers")
    assert (ran.code, "No mail is sent" in ran.err) == (0, True), ran.err
    command = ran.out.split()
    assert command[:2] == ["neo", "login"]
    ran = await neo(*command[1:], "--password-stdin", "--name", "bob", typed=f"{PASSWORD}\n")
    assert (ran.code, "bob@bank.example" in ran.out) == (0, True), ran.err
    again = await neo(*command[1:], "--password-stdin", typed=f"{PASSWORD}\n")
    assert again.code == 4


async def test_signing_in_in_the_browser(cloud: Cloud, neo: Neo, monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []
    tabs: list[threading.Thread] = []

    def browse(url: str) -> bool:
        def look() -> None:
            with httpx.Client(trust_env=False, follow_redirects=True, timeout=60) as browser:
                callback = url.partition("redirect_uri=")[2].partition("&")[0]
                forged = httpx.URL(callback.replace("%3A", ":").replace("%2F", "/"))
                assert browser.get(forged, params={"code": "x", "state": "forged"}).status_code == 404
                pages.append(browser.get(url).text)

        tabs.append(threading.Thread(target=look))
        tabs[-1].start()
        return True

    monkeypatch.setattr(webbrowser, "open", browse)
    with running_provider() as provider:
        federation_id = await federate(cloud, provider)
        ran = await neo("login", "--oidc", federation_id, "--name", "carol")
        tabs[0].join()
    assert (ran.code, "carol@corp.example" in ran.out) == (0, True), ran.err
    assert pages == ["You are signed in. You can close this window and go back to the terminal."]


async def test_a_password_is_not_sent_unencrypted_to_another_machine(neo: Neo) -> None:
    ran = await neo("login", ALICE, "--endpoint", "cloud.example:7370", "--password-stdin", typed="x\n")
    assert (ran.code, "unencrypted" in ran.err) == (2, True)


async def test_an_admin_blocks_unblocks_and_deletes_by_address(cloud: Cloud, neo: Neo) -> None:
    await make_user(cloud)
    for verb in ("block", "unblock"):
        assert (await neo("user", verb, ALICE)).code == 0
    ran = await neo("user", "set-password", ALICE)
    assert len(ran.out.splitlines()[-1]) >= 25
    assert (await neo("user", "delete", ALICE)).code == 0
    assert (await neo("user", "block", ALICE)).code == 3


async def account_id(neo: Neo) -> str:
    answer = json.loads((await neo("whoami", "-o", "json")).out)
    return answer["user_profile"]["id"]
