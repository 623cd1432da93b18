"""Slurm's REST API from outside: only listed calls reach slurmrestd, and with a token of the cloud's own.

The attacks come first: what a caller sends must not choose another path, another user or another cluster.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import jwt
import pytest

from neocloud.core.contract import Code
from neocloud.emulator.fakes import FakeSlurmApi
from neocloud.services.slurm import slurmrestd
from neocloud.services.slurm.slurmrestd import ForwardedTooLarge, SlurmRest, SlurmUnreachable
from tests.fast.services.slurm.cloud import FakeCloud, fake_cloud

SLURM = "slurm/v0.0.42"
REST = "neocloud.slurm.v1.RestService"
SCRIPT = b'{"script": "#!/bin/bash\\nhostname\\n", "job": {"name": "x"}}'


@pytest.fixture
async def cluster(tmp_path, monkeypatch) -> AsyncIterator[SimpleNamespace]:
    """A cluster whose slurmrestd keeps what reaches it."""
    reached: list[tuple[Any, ...]] = []

    async def forward(self: Any, *arguments: Any) -> tuple[int, bytes]:
        reached.append(arguments)
        return 200, b'{"jobs": []}'

    monkeypatch.setattr(FakeSlurmApi, "forward", forward)
    async with fake_cloud(tmp_path) as cloud:
        message = await cloud.create_cluster(count=1)
        base = f"http://{cloud.running.server.addresses.http}/clusters/{message.metadata.id}/"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http:
            yield SimpleNamespace(cloud=cloud, id=message.metadata.id, http=http, reached=reached)


def bearer(cloud: FakeCloud) -> dict[str, str]:
    return {"authorization": f"Bearer {cloud.token}"}


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", f"{SLURM}/reconfigure/"),
        ("GET", f"{SLURM}/jobs"),
        ("GET", f"{SLURM}/job/1/../../reconfigure/"),
        ("GET", f"{SLURM}/node/%2e%2e/reconfigure/"),
        ("GET", f"{SLURM}/node/..%2freconfigure"),
        ("GET", f"{SLURM}/job/1%0a2"),
        ("GET", f"{SLURM}/job/1%3fx"),
        ("GET", f"{SLURM}//jobs/"),
        ("GET", "slurm/v0.0.40/jobs/"),
        ("GET", "slurmdb/v0.0.42/users/"),
        ("GET", "openapi/v3"),
        ("GET", f"{SLURM}/job/submit"),
        ("GET", f"{SLURM}/node/%ff"),
        ("POST", f"{SLURM}/job/1"),
        ("POST", f"{SLURM}/node/worker-0"),
        ("POST", "slurmdb/v0.0.42/users/"),
        ("DELETE", f"{SLURM}/node/worker-0"),
        ("DELETE", f"{SLURM}/jobs/"),
        ("DELETE", "slurmdb/v0.0.42/account/root"),
    ],
)
async def test_a_call_that_is_not_listed_does_not_reach_slurm(cluster, verb: str, path: str) -> None:
    answer = await cluster.http.request(verb, path, headers=bearer(cluster.cloud), content=SCRIPT)
    assert answer.status_code in (400, 404, 405), answer.text
    assert cluster.reached == []


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer x"}, {"x-slurm-user-token": "x"}])
async def test_a_caller_without_a_valid_token_is_refused(cluster, headers: dict[str, str]) -> None:
    for verb, path in (("GET", "jobs/"), ("POST", "job/submit"), ("DELETE", "job/1")):
        answer = await cluster.http.request(
            verb, f"{SLURM}/{path}", headers={"x-slurm-user-name": "root", **headers}
        )
        assert answer.status_code == 401
    assert cluster.reached == []


async def test_a_cluster_that_is_not_there_is_like_one_that_the_caller_may_not_use(cluster) -> None:
    other = str(cluster.http.base_url).replace(cluster.id, "slurmcluster-e00other")
    answer = await cluster.http.get(f"{other}{SLURM}/jobs/", headers=bearer(cluster.cloud))
    assert answer.status_code in (403, 404)
    assert cluster.reached == []


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b"[" * 200_000])
async def test_a_job_must_be_a_json_object(cluster, body: bytes) -> None:
    answer = await cluster.http.post(f"{SLURM}/job/submit", headers=bearer(cluster.cloud), content=body)
    assert answer.status_code == 400
    assert cluster.reached == []


async def test_sizes_are_bounded(cluster) -> None:
    large = b'{"script": "' + b"x" * (6 << 20) + b'"}'
    submit = f"{SLURM}/job/submit"
    answer = await cluster.http.post(submit, headers=bearer(cluster.cloud), content=large)
    assert answer.status_code == 400
    answer = await cluster.http.get(f"{SLURM}/jobs/?{'x' * 3000}", headers=bearer(cluster.cloud))
    assert answer.status_code == 400
    assert cluster.reached == []


async def test_jobs_are_listed_submitted_and_cancelled_with_either_header(cluster) -> None:
    for headers in (bearer(cluster.cloud), {"x-slurm-user-token": cluster.cloud.token}):
        for verb, path in (("GET", "jobs/?update_time=1"), ("POST", "job/submit"), ("DELETE", "job/7")):
            content = SCRIPT if verb == "POST" else None
            answer = await cluster.http.request(verb, f"{SLURM}/{path}", headers=headers, content=content)
            assert (answer.status_code, answer.json()) == (200, {"jobs": []})
    calls = [tuple(call[:4]) for call in cluster.reached[:3]]
    assert calls == [
        ("GET", f"{SLURM}/jobs/", "update_time=1", b""),
        ("POST", f"{SLURM}/job/submit", "", SCRIPT),
        ("DELETE", f"{SLURM}/job/7", "", b""),
    ]


async def test_a_submission_is_audited_without_its_body(cluster) -> None:
    await cluster.http.post(f"{SLURM}/job/submit", headers=bearer(cluster.cloud), content=SCRIPT)
    events, _ = await cluster.cloud.running.store.read(lambda tx: tx.list_audit())
    (event,) = [event for event in events if event.method == f"{REST}/Submit"]
    assert b"hostname" not in event.request and b"job/submit" in event.request


async def test_the_same_calls_are_served_over_grpc(cluster) -> None:
    answer = await cluster.cloud.call(f"{REST}/Read", cluster_id=cluster.id, path=f"{SLURM}/nodes/")
    assert (answer.status, answer.body) == (200, b'{"jobs": []}')
    refused = await cluster.cloud.refusal(f"{REST}/Read", cluster_id=cluster.id, path=f"{SLURM}/reconfigure/")
    assert refused.code is Code.INVALID_ARGUMENT


@asynccontextmanager
async def slurmrestd_answering(answer: bytes, monkeypatch) -> AsyncIterator[list[bytes]]:
    requests: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requests.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    monkeypatch.setattr(slurmrestd, "PORT", server.sockets[0].getsockname()[1])
    async with server:
        yield requests


async def test_slurm_gets_a_token_of_the_cloud_and_its_refusals_are_passed_on(monkeypatch) -> None:
    refusal = b'HTTP/1.1 500 Internal Server Error\r\ncontent-length: 14\r\n\r\n{"errors": []}'
    async with slurmrestd_answering(refusal, monkeypatch) as requests:
        slurm = SlurmRest("127.0.0.1", b"k" * 32)
        assert await slurm.forward("GET", f"{SLURM}/jobs/", "a=b", b"", 100) == (500, b'{"errors": []}')
        await slurm.close()
    head = requests[0].decode().lower()
    assert head.startswith("get /slurm/v0.0.42/jobs/?a=b http/1.1") and "authorization" not in head
    token = requests[0].decode().partition("X-SLURM-USER-TOKEN: ")[2].split()[0]
    assert jwt.decode(token, b"k" * 32, algorithms=["HS256"])["sun"] == "root"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\n" + b"x" * 200, ForwardedTooLarge),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 200\r\n\r\nx", SlurmUnreachable),
        (b"", SlurmUnreachable),
    ],
)
async def test_an_answer_that_is_too_long_or_cut_off_is_an_error(monkeypatch, answer: bytes, error) -> None:
    async with slurmrestd_answering(answer, monkeypatch):
        slurm = SlurmRest("127.0.0.1", b"k" * 32)
        with pytest.raises(error):
            await slurm.forward("GET", f"{SLURM}/jobs/", "", b"", 100)
        await slurm.close()
