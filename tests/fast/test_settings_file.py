"""`config.json` of a home: what is chosen stays chosen, also in homes of earlier versions."""

import json
import subprocess
import sys
from dataclasses import fields
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from neocloud.control_plane.composition import end_workloads
from neocloud.control_plane.settings_file import (
    WORLD_FILE,
    BadSettings,
    parse_arguments,
    problem_at_stop,
    read_settings,
    write_settings,
)
from neocloud.settings.settings import Settings, options

EARLIER = {
    "grpc_port": 0,
    "http_port": 7371,
    "gateway_port": 0,
    "gateway_hosts": ["models.example.com"],
    "media_domains": ["media.example.com"],
    "tls_port": 0,
    "host": "0.0.0.0",
    "domain": "",
    "database_url": "",
    "database_url_file": "",
    "price_file": "/srv/prices.yaml",
    "quota_file": "",
    "model_folders": ["/srv/models"],
    "audit_days": 30,
    "history_days": 0,
    "calls_per_second": None,
    "sign_ins_per_second": 0.0,
    "public_pool": "198.19.0.0/16",
    "opened_ranges": ["10.20.0.0/16"],
    "allow_private_issuers": True,
    "issuer_hosts": ["keys.example.com"],
    "login_ports": "2300-2400",
    "emulator": True,
    "emulator_gpus": "8xH100",
}
"""All that `neo up` kept in neo.json; an empty value was the default."""


def as_settings(home: Path) -> Settings:
    return Settings(
        home=home,
        grpc_port=0,
        gateway_port=0,
        gateway_hosts=("models.example.com",),
        media_domains=("media.example.com",),
        tls_port=0,
        redirector_port=0,
        host="0.0.0.0",
        price_file=Path("/srv/prices.yaml"),
        model_folders=(Path("/srv/models"),),
        audit_days=30,
        sign_ins_per_second=0.0,
        public_pool="198.19.0.0/16",
        opened_ranges=(IPv4Network("10.20.0.0/16"),),
        allow_private_issuers=True,
        issuer_hosts=("keys.example.com",),
        login_ports=(2300, 2400),
        emulator=True,
        emulator_gpus="8xH100",
    )


def test_a_home_of_an_earlier_version_keeps_its_options(tmp_path: Path) -> None:
    (tmp_path / "neo.json").write_text(json.dumps(EARLIER))
    assert read_settings(tmp_path) == as_settings(tmp_path)
    write_settings(read_settings(tmp_path))
    assert not (tmp_path / "neo.json").exists()
    assert read_settings(tmp_path) == as_settings(tmp_path)


def test_an_earlier_home_without_choices_has_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "neo.json").write_text("{}")
    assert read_settings(tmp_path) == Settings(home=tmp_path)


def test_only_what_was_chosen_is_written(tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, tls_port=7372))
    assert json.loads((tmp_path / "config.json").read_text()) == {"tls_port": 7372}


def test_arguments_come_before_the_file(tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, grpc_port=1, http_port=2, allow_private_issuers=True))
    home = ["--home", str(tmp_path)]
    action, settings = parse_arguments([*home, "--http-port", "3", "--no-allow-private-issuers"])
    assert (action, settings.grpc_port, settings.http_port) == ("serve", 1, 3)
    assert not settings.allow_private_issuers
    assert parse_arguments([*home, "--stop-workloads"])[0] == "stop"


DAMAGED = (
    *(b"", b"{", b"[]", b'{"tls_port": 73', b"\xff\xfe", b"[" * 100_000),
    *(b'{"gateway_hosts": 1}', b'{"login_ports": "x"}', b'{"login_ports": 5}', b'{"host": {}}'),
    *(b'{"price_file": 5}', b'{"grpc_port": true}', b'{"grpc_port": null}', b'{"grpc_port": 1.5}'),
    *(b'{"http_port": 70000}', b'{"emulator": "yes"}', b'{"calls_per_second": NaN}', b'{"listen": [7]}'),
)


@pytest.mark.parametrize("content", DAMAGED, ids=[str(index) for index in range(len(DAMAGED))])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadSettings, match=r"config\.json cannot be read"):
        read_settings(tmp_path)


def test_a_database_url_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "database-url").write_bytes(b"postgresql://\xff")
    with pytest.raises(BadSettings, match="database-url cannot be read"):
        read_settings(tmp_path)


@pytest.mark.parametrize("action", ["stop", "destroy"])
def test_a_home_is_stopped_and_destroyed_whatever_its_settings_are(tmp_path: Path, action: str) -> None:
    (tmp_path / "config.json").write_text("{")
    arguments = ["--home", str(tmp_path), f"--{action}-workloads"]
    assert parse_arguments(arguments) == (action, Settings(home=tmp_path))
    (tmp_path / WORLD_FILE).touch()
    assert parse_arguments(arguments)[1].emulator, "no engine is looked for"
    (tmp_path / "database-url").write_text("postgresql://a:b@host/c")
    assert parse_arguments(arguments)[1].database_url == "postgresql://a:b@host/c"
    with pytest.raises(BadSettings):
        parse_arguments(arguments[:2])


def test_a_stop_needs_no_file_with_the_databases_url(tmp_path: Path) -> None:
    url = tmp_path / "url"
    url.write_bytes(b"postgresql://\xff")
    url.chmod(0o600)
    write_settings(Settings(home=tmp_path, database_url_file=url))
    arguments = ["--home", str(tmp_path)]
    assert parse_arguments([*arguments, "--stop-workloads"])[1].database_url == ""
    assert str(url) in problem_at_stop(tmp_path)
    with pytest.raises(SystemExit):
        parse_arguments(arguments)


async def test_a_stop_without_settings_makes_no_database(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    await end_workloads(Settings(home=tmp_path, emulator=True), destroy=False)
    assert not (tmp_path / "state.db").exists()


def test_every_field_that_an_operator_chooses_has_an_option() -> None:
    recorded = {"private_range", "cloud_number", "storage_authority_file"}  # in ranges.json and tls/
    assert {each.name for each in fields(Settings)} - options().keys() == {"home"} | recorded


def test_the_server_needs_the_home_alone(tmp_path: Path) -> None:
    """It refuses the price list that the file names, so it has read it."""
    tmp_path.chmod(0o700)
    chosen = {"emulator": True, "price_file": "/nowhere/prices.yaml", "grpc_port": 0, "http_port": 0}
    (tmp_path / "neo.json").write_text(json.dumps(chosen))
    command = [sys.executable, "-m", "neocloud.control_plane", "--home", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 1
    assert "/nowhere/prices.yaml" in ran.stderr
