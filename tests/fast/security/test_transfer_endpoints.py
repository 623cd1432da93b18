"""The endpoints of transfers are named by tenants: they lead to the public internet, and nowhere else."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpcore
import pytest

from neocloud.core.destinations import METADATA_ADDRESSES
from neocloud.s3_client.network import CheckedBackend, DestinationRefused, checked_pool
from neocloud.services.storage.rules.transfers import endpoint_problem
from tests.fast.object_gateway.s3.served import REGION, Served, serving
from tests.fast.object_gateway.work.transfers.cloud import Transfers, phase
from tests.fast.object_gateway.work.transfers.endpoints import FakeEndpoint, fake_endpoint


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A gateway whose operator allows no private address."""
    with serving(tmp_path_factory.mktemp("closed")) as served:
        yield served


@contextmanager
def listener() -> Iterator[tuple[int, list[bool]]]:
    """Listen on loopback; yield the port, and a list that is filled if anything connects."""
    found: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        yield server.getsockname()[1], found
        try:
            server.accept()[0].close()
            found.append(True)
        except BlockingIOError:
            pass


def transfers_of(served: Served, url: str) -> Transfers:
    return Transfers(served, url, served, "source-bucket", served.make_bucket())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433", "0.0.0.0"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_this_machine_is_not_connected_to(closed: Served, scheme: str, host: str) -> None:
    with listener() as (port, connected):
        report = transfers_of(closed, f"{scheme}://{host}:{port}").failed()
        assert (report.error.origin, report.error.code) == (1, "EndpointRefused")
    assert not connected


@pytest.mark.parametrize(
    "host", [*map(str, METADATA_ADDRESSES[:2]), "10.0.0.1", "192.168.1.1", "100.64.0.1", "169.254.1.1"]
)
def test_metadata_and_private_networks_are_not_connected_to(closed: Served, host: str) -> None:
    report = transfers_of(closed, f"https://{host}").failed()
    assert report.error.code == "EndpointRefused"


@pytest.mark.parametrize("answer", [["10.0.0.1"], ["1.1.1.1", "10.0.0.1"], ["::1"], ["fd00:ec2::254"]])
async def test_every_address_of_a_name_must_be_public(answer: Sequence[str]) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return answer

    backend = CheckedBackend(is_plain=False, allow_private=False, resolve=resolve)
    with pytest.raises(DestinationRefused):
        await backend.connect_tcp("storage.example.com", 443, 1.0)


async def test_a_name_that_changes_leads_nowhere_else() -> None:
    """The address that was checked is the one that is connected to, and each connection is checked."""
    answers = [["1.1.1.1"], ["127.0.0.1"]]
    connected: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        return answers.pop(0)

    class Recorded(httpcore.AsyncNetworkBackend):
        async def connect_tcp(self, host: str, port: int, *_: object, **__: object):
            connected.append(host)
            raise httpcore.ConnectError

    backend = CheckedBackend(is_plain=False, allow_private=False, resolve=resolve)
    backend._inner = Recorded()
    with pytest.raises(httpcore.ConnectError):
        await backend.connect_tcp("storage.example.com", 443, 1.0)
    with pytest.raises(DestinationRefused):
        await backend.connect_tcp("storage.example.com", 443, 1.0)
    assert connected == ["1.1.1.1"]


async def test_private_networks_that_are_allowed_are_not_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also, plain http is for this machine alone, and no proxy of the environment is asked."""
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    for scheme, host in (("https", "169.254.169.254"), ("http", "10.0.0.1"), ("http", "1.1.1.1")):
        pool = checked_pool(scheme, allow_private=True)
        with pytest.raises(DestinationRefused):
            await asyncio.wait_for(pool.request("GET", f"{scheme}://{host}/"), 5)
        await pool.aclose()


def test_redirects_are_not_followed(tmp_path: Path) -> None:
    with (
        serving(tmp_path, allow_private_transfers=True) as served,
        listener() as (port, connected),
        fake_endpoint(FakeEndpoint(redirects_to=f"http://127.0.0.1:{port}/")) as (url, _),
    ):
        report = transfers_of(served, url).failed()
        assert report.error.code in ("PermanentRedirect", "HTTP307")
    assert not connected


def test_what_an_endpoint_says_is_shown_bounded_and_plain(tmp_path: Path) -> None:
    body = "<Error><Code>No\x9bsuch</Code><Message>" + "\x85" * 100_000 + "</Message></Error>"
    with (
        serving(tmp_path, allow_private_transfers=True) as served,
        fake_endpoint(FakeEndpoint(status=403, error_body=body.encode())) as (url, _),
    ):
        error = transfers_of(served, url).failed().error
    assert len(error.code) <= 64 and len(error.message) <= 300
    assert error.code.isprintable() and error.message.isprintable()


@pytest.mark.parametrize(
    "body",
    [
        b'<!DOCTYPE l [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>',
        b"<ListBucketResult>" + b"<a>" * 5000,
        b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        b"<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents></ListBucketResult>",
        b"\x00\xff",
    ],
)
def test_lists_that_are_made_to_harm_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr("neocloud.object_gateway.work.transfers.iteration.FIRST_WAIT_SECONDS", 0.001)
    monkeypatch.setattr("neocloud.object_gateway.work.transfers.runner.MOST_FAILURES", 1)
    with (
        serving(tmp_path, allow_private_transfers=True) as served,
        fake_endpoint(FakeEndpoint(list_body=body)) as (url, _),
    ):
        assert transfers_of(served, url).failed().error.code == "InvalidResponse"


def test_secrets_are_in_no_file_report_or_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(tmp_path, allow_private_transfers=True) as served,
        fake_endpoint(FakeEndpoint(status=403)) as (url, seen),
    ):
        transfers = transfers_of(served, url)
        report = transfers.failed()
        assert phase(report) == "FAILED"
        secret = served.owner.secret
        assert secret not in str(report)
    assert seen and not any(secret in str(each) for each in seen)
    assert secret not in caplog.text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files and not [path for path in files if secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    "endpoint",
    [
        "file:///etc/passwd", "gopher://x", "storage.example.com", "https://", "https://a b",
        "https://user:password@storage.example.com", "https://storage.example.com/path",
        "https://storage.example.com?x", "https://storage.example.com#x", "https://storage.example.com:0",
        "https://storage.example.com:99999", "https://[::1", "https://a\r\nHost: b", " https://a",
    ],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused_when_it_is_named(endpoint: str) -> None:
    assert endpoint_problem(endpoint)


@pytest.mark.parametrize(
    "endpoint", ["https://s3.example.com", "http://127.0.0.1:9000", "https://[2606:4700::1]"]
)
def test_endpoints_are_taken(endpoint: str) -> None:
    assert not endpoint_problem(endpoint)


def test_region_of_this_cloud_is_meant_by_nebius(closed: Served) -> None:
    side = {"nebius": {"region": f"not-{REGION}", "bucket_name": "data-sets", "anonymous": {}}}
    report = transfers_of(closed, "https://s3.example.com").failed(source=side)
    assert report.error.code == "InvalidRegion"
