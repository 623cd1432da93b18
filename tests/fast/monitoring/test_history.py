"""The history of metrics in the real store: what is collected, and that nobody reads another project's."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest

from neocloud.control_plane.composition import compose, on_emulator
from neocloud.control_plane.lifecycle import Composition
from neocloud.control_plane.metrics_store import (
    collectors_certificate,
    metrics_store,
    stop_metrics_store,
    targets_folder,
    write_scrape_file,
)
from neocloud.control_plane.settings_file import BadSettings
from neocloud.core.clock import SystemClock
from neocloud.core.contract import Code
from neocloud.data_plane.certificate_files import CertificateFiles
from neocloud.data_plane.metrics_keys import scrape_key_file
from neocloud.services.monitoring.history import StoreOfHome
from neocloud.settings.settings import Settings
from neocloud.testing.waiting import until
from tests.control_plane import cloud_in_process
from tests.fast.monitoring.cloud import MeasuredCloud, measured_cloud
from tests.fast.monitoring.conftest import Store

SECRET = "neocloud_test_secret"
SERVICE = "neocloud.monitoring.v1.MetricsService"


@pytest.fixture
async def cloud(store: Store, tmp_path: Path) -> AsyncIterator[MeasuredCloud]:
    async with measured_cloud(tmp_path) as running:
        yield running


class Reader:
    """A caller with a token who queries as a client of Prometheus does."""

    def __init__(self, cloud: MeasuredCloud, token: str, project: str) -> None:
        self.base = f"http://{cloud.running.server.addresses.http}/monitoring/projects/{project}/api/v1"
        self.all = f"http://{cloud.running.server.addresses.http}/monitoring/api/v1"
        self.headers = {"authorization": f"Bearer {token}"}

    async def get(self, url: str, method: str = "GET", **more: Any) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False) as client:
            return await client.request(method, url, headers=self.headers, **more)

    async def result(self, expression: str, page: str = "query", **more: str) -> Any:
        answer = await self.get(f"{self.base}/{page}", params={"query": expression, **more})
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]["result"]


async def test_what_the_control_plane_tells_is_kept_and_shown_by_project(
    cloud: MeasuredCloud, store: Store
) -> None:
    cluster = await cloud.watched_cluster(1, 0)
    store.collect(control_plane=cloud.running.server.addresses.collectors)
    await store.appears(f'neocloud_fleet_nodes{{cluster="{cluster}",phase="in_service"}} == 1')
    mine = Reader(cloud, cloud.token, cloud.project_id)
    (found,) = await mine.result('neocloud_fleet_nodes{phase="in_service"}')
    assert found["metric"]["cluster"] == cluster and found["value"][1] == "1"
    assert await mine.result("neocloud_api_requests_total") == [], "it belongs to no project"
    everything = await mine.get(f"{mine.all}/query", params={"query": "neocloud_api_requests_total"})
    assert everything.json()["data"]["result"], "operators see it"
    await store.appears("neocloud_slurm_up")
    ranged = await until(
        lambda: mine.result("neocloud_slurm_up", "query_range", start="-1m", step="5s"),
        "a range, whose last step may lie before the first sample",
    )
    assert ranged[0]["metric"]["cluster_name"] == "bank"


async def two_tenants(cloud: MeasuredCloud, store: Store) -> tuple[Reader, str]:
    """Return a reader of another tenant beside whose series lie ours, and its project."""
    token, project = await cloud.other_tenant()
    await store.add(
        f'{SECRET}{{project="{cloud.project_id}",name="ours"}} 471147114711\n'
        f'{SECRET}_of_operators{{name="ours"}} 471247124712\n'
        f'{SECRET}{{project="{project}",name="theirs"}} 1\n'
    )
    await store.appears(f'{SECRET}{{name="ours"}}')
    return Reader(cloud, token, project), project


ATTACKS = (
    SECRET,
    '{__name__=~".+"}',
    f'{SECRET}{{project="OURS"}}',
    f'{SECRET}{{project=~".*"}}',
    f'{SECRET}{{project!="THEIRS"}}',
    f'{SECRET}{{project=""}}',
    f'{SECRET}{{project="THEIRS" or project="OURS"}}',
    f'{{__name__="{SECRET}",project="OURS" or __name__="{SECRET}"}}',
    f'{SECRET} or {SECRET}{{project="OURS"}}',
    f"{SECRET} or on() {SECRET}_of_operators",
    f'union({SECRET}, {SECRET}{{project="OURS"}})',
    f'max_over_time(({SECRET}{{project="OURS"}})[10m:1s])',
    f'max_over_time(max_over_time({SECRET}{{project=~".+"}}[5m])[10m:1m])',
    f'label_set({SECRET}, "project", "OURS")',
    f'label_replace({SECRET}{{project="OURS"}}, "project", "THEIRS", "", "")',
    f'WITH (extra_filters="", f(p)={SECRET}{{project=p}}) f("OURS")',
    f"WITH (commonFilters={{project=~'.*'}}) {SECRET}{{commonFilters}}",
    f'{SECRET}{{project="THEIRS"}} + ignoring(project,name) group_right {SECRET}{{project="OURS"}}',
    f"{SECRET} and on() {SECRET}_of_operators",
    f"sum({SECRET}) by (project, name)",
    f"count_values('v', {SECRET})",
    f'topk(10, {{__name__=~"{SECRET}.*"}})',
    f'{SECRET}{{project="OURS"}} offset 1s',
    f"{SECRET} @ end()",
    f'absent({SECRET}{{project="OURS"}}) and vector(471147114711) < 0',
    f'label_join({SECRET}, "x", ",", "project", "name")',
    f"{SECRET}{{}}#\"}}&extra_filters[]={{project='OURS'}}",
)


async def test_no_expression_reads_another_tenant(cloud: MeasuredCloud, store: Store) -> None:
    outsider, project = await two_tenants(cloud, store)
    answered = 0
    for attack in ATTACKS:
        expression = attack.replace("OURS", cloud.project_id).replace("THEIRS", project)
        for page, more in (("query", {}), ("query_range", {"start": "-5m", "step": "10s"})):
            for method in ("GET", "POST"):
                data = {"query": expression, **more}
                sent = {"params": data} if method == "GET" else {"data": data}
                answer = await outsider.get(f"{outsider.base}/{page}", method, **sent)
                assert answer.status_code in (200, 400, 422), answer.text
                answered += answer.status_code == 200
                content = answer.text if answer.status_code == 200 else ""
                assert not any(each in content for each in ("471147114711", "471247124712", '"ours"')), (
                    expression
                )
    assert answered > 2 * len(ATTACKS), "most of them are queries that the store understands"
    assert (await outsider.result(SECRET))[0]["value"][1] == "1", "its own is there"
    mine = Reader(cloud, cloud.token, cloud.project_id)
    assert [each["value"][1] for each in await mine.result(SECRET)] == ["471147114711"], "and ours for us"


async def test_no_other_page_and_no_parameter_opens_it(cloud: MeasuredCloud, store: Store) -> None:
    outsider, project = await two_tenants(cloud, store)
    ours = f'{{project="{cloud.project_id}"}}'
    parameters = urlencode({"match[]": '{__name__!=""}', "query": SECRET})
    for path in (
        *("export", "export/csv", "export/native", "import", "import/prometheus", "write", "status/tsdb"),
        *(
            "admin/tsdb/delete_series",
            "query/../export",
            "query%2f..%2fexport",
            "../federate",
            "label//values",
        ),
        *(
            "status/top_queries",
            "status/active_queries",
            "labels/",
            "label/a/b/values",
            "values",
            "label//values",
        ),
        *("label/..%2F..%2Fexport/values", "Query", "metadata", "series/count", "query?x"),
    ):
        url = f"{outsider.base}/{quote(path, safe='/%.')}"
        answer = await outsider.get(f"{url}?{parameters}")
        assert answer.status_code in (400, 404), (path, answer.text)
        assert "471147114711" not in answer.text
    for name in ("extra_label", "extra_filters", "extra_filters[]", "extra_anything"):
        value = f"project={cloud.project_id}" if name == "extra_label" else ours
        for more in ({"params": {"query": SECRET, name: value}}, {"data": {"query": SECRET, name: value}}):
            method = "POST" if "data" in more else "GET"
            answer = await outsider.get(f"{outsider.base}/query", method, **more)
            assert answer.status_code == 400 and name in answer.json()["message"]
    for page in ("series", "labels", "label/name/values", "label/project/values", "label/__name__/values"):
        for match in ('{__name__!=""}', ours, f'{{project="{project}" or project=~".+"}}'):
            answer = await outsider.get(f"{outsider.base}/{page}", params={"match[]": match, "start": "-1h"})
            assert answer.status_code in (200, 422), answer.text
            assert "ours" not in answer.text and cloud.project_id not in answer.text, (page, match)
            assert "of_operators" not in answer.text


async def test_the_rights_on_the_project_decide(cloud: MeasuredCloud, store: Store) -> None:
    outsider, _ = await two_tenants(cloud, store)
    for project in (cloud.project_id, cloud.tenant_id, "project-e00none", 'x"} or {y="', "."):
        other = Reader(cloud, outsider.headers["authorization"][7:], quote(project, safe=""))
        answer = await other.get(f"{other.base}/query", params={"query": SECRET})
        assert answer.status_code in (400, 403, 404) and "471147114711" not in answer.text, (
            project,
            answer.text,
        )
    refused = await outsider.get(f"{outsider.all}/query", params={"query": SECRET})
    assert refused.status_code == 403 and "operator" in refused.json()["message"]
    posted = await outsider.get(f"{outsider.all}/query", "POST", data={"query": SECRET})
    assert posted.status_code == 403
    nobody = Reader(cloud, "no", cloud.project_id)
    assert (await nobody.get(f"{nobody.base}/query")).status_code == 401
    refusal = await cloud.refusal(f"{SERVICE}/Read", project_id=cloud.tenant_id, path="query", query="")
    assert refusal.code is Code.INVALID_ARGUMENT, "a tenant is no project"


async def test_an_exporter_cannot_write_into_another_project(cloud: MeasuredCloud, store: Store) -> None:
    forged = f'{SECRET}{{project="{cloud.project_id}",name="forged"}} 666\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(forged)}\r\n\r\n"
        writer.write(f"{head}{forged}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        store.collect(gateway=address)
        folder = targets_folder(store.home)
        groups = [{"targets": [address], "labels": {"project": "project-e00theirs"}}]
        (folder / "theirs.json").write_text(json.dumps(groups))
        (folder / "plain.json").write_text(json.dumps([{"targets": [address], "labels": {"kind": "node"}}]))
        await store.appears(f'count({SECRET}{{name="forged"}}) == 3')
        found = {each["metric"]["project"] for each in await store.query(SECRET)}
        assert found == {"operator", "project-e00theirs"}
    mine = Reader(cloud, cloud.token, cloud.project_id)
    assert await mine.result(SECRET) == []


class Taker:
    """Listens on the port of a control plane that is down, as any user of the host can."""

    def __init__(self, certificate: CertificateFiles | None) -> None:
        self._context = certificate.load().context if certificate else None
        self.heard: list[bytes] = []
        """Bytes of each connection, after the handshake if there is one; empty where there was none."""
        self.tried = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tried += 1
        try:
            if self._context is not None:
                await writer.start_tls(self._context)
            self.heard.append(await asyncio.wait_for(reader.read(65536), 5))
            forged = f'{SECRET}{{project="project-e00theirs"}} 1\n'
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {len(forged)}\r\n\r\n"
            writer.write(f"{head}{forged}".encode())
            await writer.drain()
        except OSError:  # also of TLS: the store refused the certificate
            pass
        finally:
            writer.close()


@pytest.mark.parametrize("speaks", ["plain", "tls"])
async def test_who_takes_the_port_of_the_control_plane_learns_no_key_and_is_not_believed(
    store: Store, tmp_path: Path, speaks: str
) -> None:
    """Also with a certificate for the same name, of an authority of its own."""
    collectors_certificate(store.home, datetime.now(UTC))
    theirs = collectors_certificate(tmp_path / "theirs", datetime.now(UTC)) if speaks == "tls" else None
    taker = Taker(theirs)
    async with await asyncio.start_server(taker.answer, "127.0.0.1", 0) as server:
        store.collect(control_plane=f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await until(lambda: taker.tried >= 3, seconds=40)
        key = scrape_key_file(store.home).read_text().strip()
        assert key and not any(key.encode() in each or b"uthorization" in each for each in taker.heard)
        await store.appears('up{job="control-plane"} == 0')
    assert await store.query(SECRET) == [], "nor can it write into the series of a project"


async def test_the_store_asks_for_its_password_and_has_no_rights(store: Store) -> None:
    async with store.client(with_password=False) as client:
        for path in ("/api/v1/query?query=up", "/metrics", "/api/v1/export", "/vmui/", "/targets", "/flags"):
            assert (await client.get(path)).status_code == 401, path
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{store.pid}/status").read_text().splitlines())
    assert int(status["CapEff"], 16) == 0 and int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    command = Path(f"/proc/{store.pid}/cmdline").read_text().split("\0")
    assert "-retentionPeriod=90d" in command
    assert any(each.startswith("-httpListenAddr=127.0.0.1:") for each in command)
    password = (store.home / "metrics" / "password").read_text().strip()
    assert password not in "".join(command)


async def test_the_store_goes_on_and_is_adopted(store: Store) -> None:
    before = store.pid
    await store.process.start()
    assert store.pid == before


async def test_a_long_answer_and_many_queries_are_refused(
    cloud: MeasuredCloud, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Reader(cloud, cloud.token, cloud.project_id)
    too_long = await mine.get(f"{mine.base}/query", "POST", data={"query": "1+" * 9000 + "1"})
    assert too_long.status_code == 400
    too_many = await mine.get(f"{mine.base}/query_range", params={"query": "1", "start": "0", "step": "1ms"})
    assert too_many.status_code in (400, 422) and "points" in too_many.text
    monkeypatch.setattr("neocloud.services.monitoring.history.MAX_ANSWER_BYTES", 10)
    assert "longer than 10 bytes" in (await mine.get(f"{mine.base}/labels")).text
    monkeypatch.setattr("neocloud.services.monitoring.history.AT_ONCE", 0)
    busy = await mine.get(f"{mine.base}/labels")
    assert busy.status_code == 429 and busy.headers["retry-after"] == "1"


async def test_without_a_store_the_answer_says_what_to_do(tmp_path: Path) -> None:
    async with measured_cloud(tmp_path) as cloud:
        refusal = await cloud.refusal(
            f"{SERVICE}/Read", project_id=cloud.project_id, path="query", query="query=up"
        )
        assert refusal.code is Code.FAILED_PRECONDITION and "neo up --metrics" in refusal.message


async def test_a_cloud_starts_its_store_and_collects_from_itself(
    metrics_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.control_plane.metrics_store.SCRAPE_SECONDS", 1)
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "metrics").symlink_to(metrics_program)

    def composed(settings: Settings, engine: Any) -> Composition:
        composition = compose(settings, engine, SystemClock())
        return replace(
            composition,
            metrics_store=metrics_store(settings),
            collectors=collectors_certificate(settings.home, datetime.now(UTC)),
            collect=partial(write_scrape_file, settings.home),
        )

    try:
        async with cloud_in_process(tmp_path, composed=composed) as cloud:

            async def is_collected() -> bool:
                answer = await cloud.call(f"{SERVICE}/ReadAll", path="query", query="query=up")
                return answer.status == 200 and b'"value"' in answer.body and b'"1"' in answer.body

            await until(is_collected, seconds=40, poll_seconds=0.5)
    finally:
        await stop_metrics_store(tmp_path)
    assert StoreOfHome(tmp_path).address() is None, "nothing is left running"


def test_a_store_that_was_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="neo image build metrics"):
        metrics_store(Settings(home=tmp_path, metrics=True))


async def test_the_emulator_has_nothing_to_measure(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="Leave it out"):
        async with on_emulator(Settings(home=tmp_path, metrics=True, emulator=True)):
            pass
