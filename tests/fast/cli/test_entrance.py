"""The ports that `neo status` names, and who can reach them."""

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from neocloud.cli.machine.entrance import SSH, entrance_rows, open_ports
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.control_plane.settings_file import write_settings
from neocloud.settings.settings import Settings


def server(*listen: str) -> RunningServer:
    """Return the server of a cloud that listens on these addresses, as `server.json` records it."""
    return RunningServer(
        *(os.getpid(), "127.0.0.1:7370", "http://127.0.0.1:7371", "0.1.0", datetime.now(UTC)),
        tls="0.0.0.0:7372" if listen else "",
        listen=listen,
        https_port=7374,
        login_addresses=Settings(listen=listen).login_addresses,
        login_ports=(2222, 2999),
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr("neocloud.cli.machine.entrance.authority_fingerprint", lambda place: "AB:CD")
    return Home(tmp_path)


def shown(place: Home, running: RunningServer) -> dict[str, str]:
    return {name.strip(): str(value) for name, value in entrance_rows(place, running)}


def test_ports_of_login_nodes_are_named_where_other_machines_reach_them(place: Home) -> None:
    rows = shown(place, server("192.0.2.7", "2001:db8::7"))
    assert rows["TCP 2222-2999"] == f"{SSH} on 192.0.2.7"
    assert "ssh with a key" in rows["Open to"] and "plain text on loopback only" in rows["Open to"]
    assert shown(place, server("all"))["TCP 2222-2999"] == f"{SSH} on every IPv4 address"


@pytest.mark.parametrize("listen", [(), ("2001:db8::7",)])
def test_they_are_not_named_where_only_this_machine_reaches_them(
    place: Home, listen: tuple[str, ...]
) -> None:
    running = server(*listen)
    assert SSH not in " ".join(shown(place, running).values())
    assert "ssh" not in shown(place, running)["Open to"]
    ssh = [port for port in open_ports(running) if port["protocol"] == SSH]
    assert ssh == [{"address": "127.0.0.1", "port": 2222, "last_port": 2999, "protocol": SSH, "tls": False}]


def test_a_server_of_an_earlier_release_names_none(place: Home) -> None:
    running = RunningServer(os.getpid(), "127.0.0.1:1", "http://127.0.0.1:2", "0.1.0", datetime.now(UTC))
    assert [port["protocol"] for port in open_ports(running)] == ["gRPC", "JSON"]


@pytest.mark.parametrize("listen", [(), ("192.0.2.7",)])
def test_ports_are_named_without_settings_that_can_be_read(place: Home, listen: tuple[str, ...]) -> None:
    (place.path / "config.json").write_text("{")
    assert shown(place, server(*listen))["Open to"]


def test_public_addresses_that_other_machines_find_are_named(place: Home) -> None:
    assert "Public addresses" not in shown(place, server())
    chosen = Settings(home=place.path, public_interface="eth0", public_pool="192.0.2.224/28")
    write_settings(chosen)
    where = "192.0.2.224/28 on eth0: open to other machines as security groups allow"
    assert shown(place, server())["Public addresses"] == where
