"""Settings of other clients are written, and nobody's files are overwritten (IAC-01)."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from nebius.aio.cli_config import Config
from typer.testing import CliRunner

from neocloud.cli.clients import (
    TERRAFORM_OVERRIDE,
    Plan,
    Target,
    dstack_plan,
    sdk_plan,
    sky_plan,
    terraform_plan,
)
from neocloud.cli.commands import client_config

CREDENTIALS = {
    "subject-credentials": {
        "alg": "RS256",
        "private-key": "-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n",
        "kid": "publickey-e00a",
        "iss": "serviceaccount-e00a",
        "sub": "serviceaccount-e00a",
    }
}
TARGET = Target(
    address="api.localhost:7372",
    redirector="127.0.0.1:7373",
    credentials=json.dumps(CREDENTIALS),
    service_account_id="serviceaccount-e00a",
    tenant_id="tenant-e00a",
    project_id="project-e00a",
    authority=Path("/var/lib/neocloud/tls/ca.pem"),
)
PLANS = {"dstack": dstack_plan, "sdk": sdk_plan, "sky": sky_plan, "terraform": terraform_plan}


def content(plan: Plan, path: str) -> str:
    return next(file.content for file in plan.files if file.path == path)


def test_skypilot_reads_credentials_tenant_and_domain():
    plan = sky_plan(TARGET)
    assert content(plan, ".nebius/NEBIUS_DOMAIN.txt").strip() == "api.localhost:7372"
    assert content(plan, ".nebius/NEBIUS_TENANT_ID.txt").strip() == "tenant-e00a"
    assert json.loads(content(plan, ".nebius/credentials.json")) == CREDENTIALS


def test_the_sdk_reads_the_profile_that_is_written(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(content(sdk_plan(TARGET), ".nebius/config.yaml"))
    config = Config(config_file=path, no_env=True)
    assert (config.endpoint(), config.parent_id) == ("api.localhost:7372", "project-e00a")


def test_dstack_gets_a_backend_with_one_project():
    document = yaml.safe_load(content(dstack_plan(TARGET), ".dstack/server/config.yml"))
    backend = document["projects"][0]["backends"][0]
    assert (backend["type"], backend["projects"]) == ("nebius", ["project-e00a"])
    assert backend["creds"]["public_key_id"] == "publickey-e00a"


def test_terraform_gets_an_override_file():
    document = json.loads(content(terraform_plan(TARGET), f"./{TERRAFORM_OVERRIDE}"))
    provider = document["provider"]["nebius"]
    assert provider["domain"] == "api.localhost:7372"
    assert provider["service_account"]["account_id"] == "serviceaccount-e00a"
    assert provider["resolvers"] == {"*": "localhost:7372"}, "Go finds no name below localhost"


def test_terraform_asks_a_name_server_for_a_domain_of_ones_own():
    plan = terraform_plan(replace(TARGET, address="api.cloud.example:443"))
    provider = json.loads(content(plan, f"./{TERRAFORM_OVERRIDE}"))["provider"]["nebius"]
    assert provider["domain"] == "api.cloud.example:443" and "resolvers" not in provider


@pytest.mark.parametrize("name", PLANS)
def test_only_files_for_their_owner_hold_the_key(name):
    for file in PLANS[name](TARGET).files:
        assert file.is_secret == ("PRIVATE KEY" in file.content)


@pytest.fixture
def neo(monkeypatch):
    monkeypatch.setattr(client_config, "_target", lambda context: TARGET)
    return lambda *arguments: CliRunner().invoke(client_config.app, list(arguments))


def test_a_second_run_changes_nothing_and_other_files_are_kept(neo, tmp_path):
    first = neo("sky", "--directory", str(tmp_path))
    assert first.exit_code == 0, first.output
    assert (tmp_path / ".nebius" / "credentials.json").stat().st_mode & 0o777 == 0o600
    assert neo("sky", "--directory", str(tmp_path)).exit_code == 0
    domain = tmp_path / ".nebius" / "NEBIUS_DOMAIN.txt"
    domain.write_text("api.elsewhere:443\n")
    refused = neo("sky", "--directory", str(tmp_path))
    assert "already exists with other content" in str(refused.exception)
    assert domain.read_text() == "api.elsewhere:443\n"
    assert neo("sky", "--directory", str(tmp_path), "--force").exit_code == 0
    assert domain.read_text() == "api.localhost:7372\n"


def test_terraform_keeps_the_key_out_of_the_configuration(neo, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "infrastructure").mkdir()
    done = neo("terraform", "--directory", str(tmp_path / "infrastructure"))
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "infrastructure").iterdir()] == [TERRAFORM_OVERRIDE]
    assert "PRIVATE KEY" in (tmp_path / "home" / ".nebius" / "neocloud.pem").read_text()
