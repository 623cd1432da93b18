"""`neo quota` and `neo audit` against the real control plane on a fake engine. QUOTA-01."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.real_cloud import cloud_with_profile
from tests.fast.services.quotas.conftest import Cloud


@pytest.fixture
def real(neo: Neo, tmp_path: Path) -> Iterator[Cloud]:
    with cloud_with_profile(tmp_path / "cloud") as cloud:
        yield cloud


def test_a_limit_is_set_shown_and_taken_back(neo: Neo, real: Cloud) -> None:
    name = "compute.filesystem.size.network-ssd"
    ran = neo("quota", "set", name, "2TiB")
    assert (ran.code, ran.err.strip()) == (0, f"{name}: 0 bytes of 2 TiB are used in {real.tenant_id}.")
    listed = neo("quota", "list", "-o", "json")
    limits = {item["metadata"]["name"]: item["spec"]["limit"] for item in json.loads(listed.out)}
    assert limits[name] == str(2 << 40)
    assert "2 TiB" in neo("quota", "get", name).out
    assert neo("quota", "set", name, "3TiB", "--project", real.project_id).code != 0
    assert neo("quota", "set", name, "1GiB", "--project", real.project_id).code == 0
    assert neo("quota", "set", name, "default").code == 0
    assert "4 PiB" in neo("quota", "get", name).out
    assert "1 GiB" in neo("quota", "get", name, "--project", real.project_id).out


def test_tenant_and_project_are_named_or_given_by_id(neo: Neo, real: Cloud) -> None:
    (tenant,) = json.loads(neo("iam", "tenant", "list", "-o", "json").out)
    (project, *_) = json.loads(
        neo("iam", "project", "list", "--parent-id", tenant["metadata"]["name"], "-o", "json").out
    )
    for named in (tenant["metadata"]["name"], tenant["metadata"]["id"]):
        ran = neo("quota", "get", "compute.disk.count", "--tenant", named)
        assert ran.code == 0 and real.tenant_id in ran.out, ran.err
    refused = neo("quota", "list", "--tenant", "nobody")
    assert refused.code == 3 and "There is no tenant 'nobody'" in refused.err
    assert neo("quota", "set", "compute.disk.count", "7", "--project", project["metadata"]["name"]).code == 0
    for named in (tenant, project):
        for key in ("id", "name"):
            assert neo("audit", "list", "--parent-id", named["metadata"][key]).code == 0
    refused = neo("audit", "list", "--parent-id", "nobody")
    assert refused.code == 3 and "There is no project or tenant 'nobody'" in refused.err


def test_the_next_step_of_a_refusal_is_a_command_that_works(neo: Neo, real: Cloud) -> None:
    assert neo("quota", "set", "compute.filesystem.count", "0", "--project", real.project_id).code == 0
    make = (
        "compute",
        "filesystem",
        "create",
        "--name",
        "a",
        "--size-gibibytes",
        "1",
        "--type",
        "NETWORK_SSD",
    )
    refused = neo(*make)
    assert refused.code != 0
    command = refused.err.split("neo quota set ")[1].split()[:4]
    assert neo("quota", "set", *(word.strip(".") for word in command)).code == 0
    assert neo(*make).code == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("quota", "get", "no.such"), "`neo quota list` lists them"),
        (("quota", "set", "compute.disk.count", "many"), "Write 20, 5TiB or default"),
        (("audit", "list", "--filter", "who = 'me'"), "where a field"),
        (("audit", "list", "--since", "yesterday"), "is not a date"),
    ],
)
def test_misuse_is_told_what_is_right(neo: Neo, real: Cloud, arguments: tuple[str, ...], told: str) -> None:
    ran = neo(*arguments)
    assert ran.code != 0
    assert told in ran.err


def test_events_are_listed_and_exported_and_an_export_goes_on(neo: Neo, real: Cloud) -> None:
    for number in range(3):
        assert neo("quota", "set", "compute.disk.count", str(number + 5)).code == 0
    listed = neo("audit", "list", "--filter", "service.name = 'quotas'")
    assert listed.out.count("operator") == 3
    whole = neo("audit", "export", "--since", "1h", "--filter", "service.name = 'quotas'")
    lines = [json.loads(line) for line in whole.out.splitlines()]
    assert [line["action"] for line in lines] == ["create"] * 3
    assert "3 events." in whole.err
    limits = [line["request"]["parameters"]["spec"]["limit"] for line in lines]
    assert limits == ["7", "6", "5"]
    newest = json.loads(neo("audit", "list", "-o", "json", "--limit", "1").out)
    assert contract.is_id(newest[0]["id"])
