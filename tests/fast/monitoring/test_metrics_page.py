"""`/metrics` of the control plane: what it says, and who may read it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from neocloud.control_plane.metrics_store import scrape_file, write_scrape_file
from neocloud.core.contract import ApiError
from neocloud.core.metrics import PROJECT_LABEL
from neocloud.data_plane.metrics_keys import (
    gateway_scrape_key_file,
    load_or_make_gateway_scrape_key,
    scrape_key_file,
)
from neocloud.engines.base import Reference
from neocloud.server import CertificateFolder
from neocloud.services.slurm.metrics import Queues, node_state
from tests.fast.monitoring.cloud import MeasuredCloud, measured_cloud

pytestmark = pytest.mark.slow


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[MeasuredCloud]:
    async with measured_cloud(tmp_path) as running:
        yield running


async def test_calls_runs_and_the_store_are_counted(cloud: MeasuredCloud) -> None:
    await cloud.call("neocloud.slurm.v1.ClusterService/List", parent_id=cloud.project_id)
    refused = await cloud.refusal("neocloud.slurm.v1.ClusterService/Get", id="slurmcluster-e00none")
    assert isinstance(refused, ApiError)
    text = await cloud.samples()
    service = 'service="neocloud.slurm.v1.ClusterService"'
    assert f'neocloud_api_requests_total{{code="OK",method="List",{service}}} 1.0' in text
    assert f'neocloud_api_requests_total{{code="NOT_FOUND",method="Get",{service}}} 1.0' in text
    assert f"neocloud_api_request_seconds_count{{{service}}} 2.0" in text
    assert "neocloud_store_up 1.0" in text and "process_resident_memory_bytes" in text
    await cloud.watched_cluster(1, 0)
    await cloud.sample_appears("neocloud_reconcile_due 0.0")
    assert 'neocloud_reconcile_runs_total{kind="neocloud.slurm.v1.Cluster",result="done"}' in (
        await cloud.samples()
    )


async def test_nodes_and_jobs_of_a_cluster_are_shown_with_its_project(cloud: MeasuredCloud) -> None:
    cluster = await cloud.watched_cluster(2, 1)
    pool = f'cluster="{cluster}",cluster_name="bank",node_set="worker"'
    project = f'project="{cloud.project_id}"'
    await cloud.sample_appears(f'neocloud_fleet_nodes{{{pool},phase="in_service",{project}}} 1.0')
    await cloud.sample_appears(f"neocloud_fleet_ready_spares{{{pool},{project}}} 1.0")
    await cloud.sample_appears(f'neocloud_fleet_checks{{check="slurm",{pool},{project},status="pass"}} 2.0')
    found = f'cluster="{cluster}",cluster_name="bank",{project}'
    await cloud.sample_appears(f'neocloud_slurm_jobs{{{found},state="pending"}} 0.0')
    await cloud.sample_appears(f"neocloud_slurm_up{{{found}}} 1.0")
    for family in text_string_to_metric_families(await cloud.samples()):
        if family.name.startswith(("neocloud_fleet_", "neocloud_slurm_")):
            assert all(sample.labels[PROJECT_LABEL] for sample in family.samples), family.name


async def test_an_incident_is_counted(cloud: MeasuredCloud) -> None:
    cluster = await cloud.watched_cluster(2, 0)
    pool = f'cluster="{cluster}",cluster_name="bank",node_set="worker",project="{cloud.project_id}"'
    await cloud.sample_appears(f"neocloud_fleet_incidents_total{{{pool}}} 0.0")
    node = f'cluster="{cluster}",cluster_name="bank",node="worker-0"'
    await cloud.sample_appears(
        f'neocloud_fleet_node_phase{{{node},phase="in_service",project="{cloud.project_id}"}} 1.0'
    )
    cloud.engine.kill(Reference("Pod", cluster, "worker-0"))
    await cloud.sample_appears(f"neocloud_fleet_incidents_total{{{pool}}} 1.0")


async def test_a_caller_adds_no_series_of_its_own(cloud: MeasuredCloud) -> None:
    assert (await cloud.post("no.such.Service/Method")).status_code == 501
    before = await cloud.call_series()
    for number in range(49):
        answer = await cloud.post(f"no.such.Service{number}/Method{number}")
        assert answer.status_code == 501
    text = await cloud.samples()
    assert "no.such" not in text and await cloud.call_series() == before
    unknown = 'neocloud_api_requests_total{code="UNIMPLEMENTED",method="unknown",service="unknown"} 50.0'
    assert unknown in text


async def test_only_operators_and_the_key_read_it(cloud: MeasuredCloud) -> None:
    token, _ = await cloud.other_tenant()
    assert (await cloud.page(authorization=f"Bearer {cloud.token}")).status_code == 200
    for headers, status in (
        ({}, 401),
        ({"authorization": f"Bearer {token}"}, 403),
        ({"authorization": f"Bearer {cloud.scrape_key}x"}, 401),
        ({"authorization": f"Bearer {cloud.scrape_key[:-1]}"}, 401),
        ({"authorization": f"Basic {cloud.scrape_key}"}, 401),
        ({"authorization": cloud.scrape_key}, 401),
        ({"x-neocloud-gateway-key": cloud.scrape_key}, 401),
        ({"authorization": "Bearer"}, 401),
        ({"authorization": f"Bearer {cloud.scrape_key}", "host": "evil.example"}, 421),
    ):
        answer = await cloud.page(**headers)
        assert answer.status_code == status, (headers, answer.text)
        assert "neocloud_" not in answer.text
    assert (await cloud.http(f"/metrics?token={cloud.scrape_key}")).status_code == 401
    assert (await cloud.http("/metrics/")).status_code in (404, 307)


async def test_who_takes_the_port_of_the_gateway_learns_no_key_of_the_control_plane(
    cloud: MeasuredCloud,
) -> None:
    """Any user of the host can listen there while the gateway is down, and the store collects from it."""
    write_scrape_file(cloud.home, {"control-plane": "127.0.0.1:7371", "gateway": "127.0.0.1:8900"})
    jobs = yaml.safe_load(scrape_file(cloud.home).read_text())["scrape_configs"]
    keys = {job["job_name"]: job.get("authorization", {}).get("credentials_file") for job in jobs}
    own, gateways = scrape_key_file(cloud.home), gateway_scrape_key_file(cloud.home)
    assert keys == {"control-plane": str(own), "gateway": str(gateways), "operator": None}
    key = load_or_make_gateway_scrape_key(cloud.home).value
    assert key != cloud.scrape_key and gateways.stat().st_mode & 0o077 == 0
    for path in ("/metrics", "/status", "/monitoring/api/v1/query?query=up"):
        answer = await cloud.http(path, authorization=f"Bearer {key}")
        assert answer.status_code == 401 and "neocloud_" not in answer.text, path


async def test_the_key_opens_nothing_else_and_is_closed_to_others(cloud: MeasuredCloud) -> None:
    file = scrape_key_file(cloud.home)
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0
    assert (await cloud.http("/status", authorization=f"Bearer {cloud.scrape_key}")).status_code == 401


async def test_the_port_for_collectors_has_a_certificate_and_metrics_alone(cloud: MeasuredCloud) -> None:
    files = CertificateFolder(cloud.home / "metrics" / "certificate")
    assert files.server_key.stat().st_mode & 0o077 == 0 and files.authority_key.stat().st_mode & 0o077 == 0
    at = f"https://localhost:{cloud.running.server.addresses.collectors.rpartition(':')[2]}"
    key = {"authorization": f"Bearer {cloud.scrape_key}"}
    trusted = ssl.create_default_context(cafile=str(files.authority))
    async with httpx.AsyncClient(trust_env=False, verify=trusted) as client:
        assert "neocloud_store_up" in (await client.get(f"{at}/metrics", headers=key)).text
        assert (await client.get(f"{at}/metrics")).status_code == 401
        for path in ("/status", "/healthz", "/neocloud.slurm.v1.ClusterService/List"):
            assert (await client.get(f"{at}{path}", headers=key)).status_code == 404, path
    async with httpx.AsyncClient(trust_env=False) as client:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await client.get(f"{at}/metrics", headers=key)


async def test_a_service_that_breaks_hides_no_other(
    cloud: MeasuredCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(cluster_ids: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("neocloud.server.metrics_page.SERVICE_SECONDS", 0.1)
    monkeypatch.setattr(Queues, "read", lambda self, ids: hangs(ids))
    text = await cloud.samples()
    assert "neocloud_slurm_nodes" not in text and "neocloud_fleet_nodes" in text
    assert 'neocloud_metrics_collection_errors_total{service="slurm"} 1.0' in text


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("IDLE+DYNAMIC_NORM", "idle"),
        ("IDLE+DRAIN+DYNAMIC_NORM", "drain"),
        ("DOWN+DRAIN+NOT_RESPONDING", "down"),
        ("MIXED", "mixed"),
        ("IDLE+POWERED_DOWN+CLOUD", "powered_down"),
        ("", "unknown"),
        ('x"} 1\nevil{a="', "unknown"),
    ],
)
def test_states_of_nodes_are_one_word_of_a_list(text: str, word: str) -> None:
    assert node_state(text) == word
