"""Requests beyond the rate of a tenant: refused as S3 and registries do, and others continue."""

from collections.abc import Iterator

import httpx
import pytest

from neocloud.data_plane import rate_limits
from neocloud.testing.object_control_plane import Account
from tests.fast.object_gateway.oci.client import Registry, code_of
from tests.fast.object_gateway.s3.raw import presigned
from tests.fast.object_gateway.s3.served import Served, error_of, serving

BURST = 20


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """So many may come at once, and then so few that none comes within a test."""
    rate = 0.01
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rate_limits, "BURST_SECONDS", BURST / rate)
        with serving(tmp_path_factory.mktemp("objects"), requests_per_second=rate) as served:
            yield served


def test_requests_beyond_the_rate_are_slowed_down(limited: Served) -> None:
    """S3-11. Reads of metadata and changes alike, each answered 503 SlowDown, which SDKs repeat later."""
    client = limited.client()
    bucket = limited.make_bucket()
    for number in range(BURST - 1):
        client.put_object(Bucket=bucket, Key=str(number), Body=b"x")
    for call, given in (
        (client.head_bucket, {}),
        (client.list_objects_v2, {}),
        (client.get_bucket_versioning, {}),
        (client.get_object, {"Key": "0"}),
        (client.put_object, {"Key": "more", "Body": b"x" * 100_000}),
    ):
        assert error_of(call, Bucket=bucket, **given) in ((503, "SlowDown"), (503, "503"))
    answer = httpx.get(limited.url + presigned(limited, "GET", f"/{bucket}/0"), trust_env=False)
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"
    assert "<Code>SlowDown</Code>" in answer.text
    other = limited.control_plane.add(Account("NCAKOTHER0000001", "other", "project-b"))
    limited.client(other).list_buckets()


def test_a_registry_answers_too_many_requests(limited: Served) -> None:
    registry = Registry(limited, limited.call(limited.control_plane.make_registry()).id, limited.owner)
    answers = [registry.call("GET", "app", "tags/list") for _ in range(BURST + 5)]
    assert {each.status_code for each in answers[:BURST]} == {404}
    assert code_of(answers[-1]) == (429, "TOOMANYREQUESTS") and answers[-1].headers["Retry-After"] == "1"
    registry.http.close()
