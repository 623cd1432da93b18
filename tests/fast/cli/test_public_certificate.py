"""`neo up` with a certificate by ACME: options that do not go together, and what is said of the order."""

import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from neocloud.cli.commands.status import _certificate_rows
from neocloud.cli.commands.up import _print_summary
from neocloud.cli.machine import public_certificate
from neocloud.cli.machine.entrance import authority_fingerprint, entrance_rows, sign_in_url
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.machine.public_certificate import check_public_certificate, wait_for_certificate
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.control_plane.settings_file import read_settings, write_settings
from neocloud.settings.settings import Settings

CHOSEN = Settings(listen=("all",), acme_domains=("cloud.example.com",), acme_agree_tos=True)
SERVER = RunningServer(
    *(os.getpid(), "127.0.0.1:7370", "http://127.0.0.1:7371", "0.1.0", datetime.now(UTC)),
    tls="0.0.0.0:7372",
    listen=("192.0.2.7",),
    https_port=7374,
)


def changed(**more: Any) -> Settings:
    return Settings(**{**vars(CHOSEN), **more})


def test_options_that_go_together_are_kept(tmp_path: Path) -> None:
    check_public_certificate(CHOSEN, CHOSEN, ())
    check_public_certificate(CHOSEN, Settings(), ("acme_domains", "acme_agree_tos"))
    check_public_certificate(Settings(), Settings(), ())
    check_public_certificate(Settings(), CHOSEN, ("acme_domains",))
    chosen = changed(home=tmp_path, acme_email="you@example.com", acme_http_port=8080)
    write_settings(chosen)
    assert read_settings(tmp_path) == chosen


@pytest.mark.parametrize(
    ("settings", "given", "said"),
    [
        (changed(listen=()), (), "--listen"),
        (changed(tls_certificate=Path("/a.pem")), (), "--tls-certificate"),
        (changed(acme_http_port=0), ("acme_http_port",), "a port from 1 to 65535"),
        (
            changed(acme_domains=tuple(f"cloud-{each}.example.com" for each in range(101))),
            ("acme_domains",),
            "names 101 hosts, and a certificate is issued for at most 100",
        ),
        (changed(acme_agree_tos=False), (), "https://letsencrypt.org/repository/"),
        (changed(acme_directory="https://ca.example/"), ("acme_directory",), "ca.example signs only"),
        (Settings(), ("acme_agree_tos",), "--acme-domain NAME"),
        (Settings(), ("acme_email",), "--acme-domain NAME"),
        (Settings(acme_directory="https://ca.example/"), ("acme_directory",), "--acme-domain NAME"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    settings: Settings, given: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ClientError) as caught:
        check_public_certificate(settings, CHOSEN, given)
    assert said in f"{caught.value}. {caught.value.next_step}"


def test_terms_of_another_authority_are_agreed_to_again() -> None:
    other = changed(acme_directory="https://ca.example/")
    check_public_certificate(other, CHOSEN, ("acme_directory", "acme_agree_tos"))
    check_public_certificate(other, other, ())


def waited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *reports: dict[str, Any]
) -> str:
    """Return what is said while the server reports this, the last one for ever."""
    left = list(reports)

    def get_json(*_: object) -> dict[str, Any]:
        return {"certificate": left.pop(0) if len(left) > 1 else left[0]}

    client = SimpleNamespace(tokens=SimpleNamespace(token=lambda: "token"))
    monkeypatch.setattr(public_certificate, "connect", lambda *_, **more: nullcontext(client))
    monkeypatch.setattr(public_certificate, "get_json", get_json)
    monkeypatch.setattr(public_certificate, "POLL_SECONDS", 0.0)
    wait_for_certificate(CHOSEN, SERVER, Profile("default", "127.0.0.1:1", ""))
    return capsys.readouterr().err


def report(step: str = "", problem: str = "") -> dict[str, Any]:
    return {"problem": problem, "acme": {"step": step}}


def test_the_order_is_shown_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = waited(monkeypatch, capsys, report("waiting"), report("ordering from ca.example"), report())
    assert "Certificate for cloud.example.com ..." in said and "ordering from ca.example" in said
    assert "Certificate for cloud.example.com: done" in said
    assert waited(monkeypatch, capsys, report()) == "", "nothing is ordered"


def test_an_order_that_fails_is_said_and_is_not_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = waited(monkeypatch, capsys, report("waiting"), report(problem="Its port 80 is closed."))
    assert "Its port 80 is closed." in said and "done" not in said
    assert "not issued yet" in waited(monkeypatch, capsys, report(problem="not issued yet"))


def test_an_order_that_takes_long_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(public_certificate, "WAIT_SECONDS", 0.0)
    said = waited(monkeypatch, capsys, report("ordering"))
    assert "continues; `neo status` says" in said and "done" not in said


def test_colleagues_need_no_fingerprint_where_a_public_authority_signed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, folder = Home(tmp_path), tmp_path / "tls"
    write_settings(changed(home=tmp_path))
    folder.mkdir()
    (folder / "server.pem").write_text("public")
    (folder / "acme-certificate.json").write_text(json.dumps({"chain": "public"}))
    rows = {name.strip(): str(value) for name, value in entrance_rows(place, SERVER)}
    assert rows["TCP 80"] == "check by the certificate authority, during an order only"
    assert rows["Sign in with"] == "neo login https://cloud.example.com:7374 EMAIL"
    assert rows["Certificate"] == "for cloud.example.com, by ACME from acme-v02.api.letsencrypt.org"
    assert "Fingerprint" not in rows and authority_fingerprint(place) == ""
    (folder / "server.pem").write_text("its own")
    monkeypatch.setattr("neocloud.cli.machine.entrance.authority_fingerprint", lambda place: "AB:CD")
    rows = {name.strip(): str(value) for name, value in entrance_rows(place, SERVER)}
    assert rows["Fingerprint"] == "AB:CD" and "Certificate" not in rows
    assert sign_in_url(place, SERVER) == "https://cloud.example.com:7374"


def test_the_summary_names_a_file_to_trust_only_where_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place, folder = Home(tmp_path), tmp_path / "tls"
    write_settings(changed(home=tmp_path))
    folder.mkdir()
    (folder / "server.pem").write_text("public")
    (folder / "acme-certificate.json").write_text(json.dumps({"chain": "public"}))

    def summary() -> str:
        _print_summary(place, SERVER, Profile("default", "", ""), is_new=False, replaced="")
        return capsys.readouterr().out

    assert "(gRPC)" in summary() and "ca.pem" not in summary()
    (folder / "server.pem").write_text("its own")
    assert f"authority {folder / 'ca.pem'}" in " ".join(summary().split())
    write_settings(Settings(home=tmp_path, tls_certificate=Path("/a.pem"), tls_key=Path("/a.key")))
    assert "ca.pem" not in summary()


def test_status_says_that_it_is_renewed_and_what_an_order_does() -> None:
    shown = {"ends_at": "2026-12-01T00:00:00+00:00", "is_own": False, "is_expired": False, "problem": ""}
    ((_, text),) = _certificate_rows({**shown, "is_renewed": True, "acme": None})
    assert str(text).endswith("; the server renews it before")
    assert _certificate_rows({**shown, "acme": {"step": "ordering from ca.example"}})[1:] == [
        ("Certificate order", "ordering from ca.example")
    ]
