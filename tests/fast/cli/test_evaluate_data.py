"""`neo evaluate --data s3://...`: read as the signed-in account, from a real S3 front."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from neocloud.messages.neocloud.storage.v1 import TemporaryKey

from neocloud.cli.commands import evaluate
from neocloud.core import contract
from tests.fast.cli.conftest import Neo, Ran
from tests.fast.cli.fake_control_plane import FakeServer
from tests.fast.object_gateway.s3.served import Served, serving

CHAT = {"messages": [{"role": "user", "content": "Hi?"}, {"role": "assistant", "content": "Hello."}]}


@pytest.fixture
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("objects")) as started:
        yield started


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the plans that would have been measured."""
    found: list[Any] = []
    monkeypatch.setattr(evaluate, "gateway_of", lambda context, url: nullcontext())
    monkeypatch.setattr(evaluate, "measure", lambda model, plan, *rest: found.append(plan))
    return found


def run(neo: Neo, data: str) -> Ran:
    return neo("evaluate", "--base", "a", "--candidate", "b", "--data", data)


def test_conversations_come_from_an_object(
    signed_in: Neo,
    cloud: FakeServer,
    served: Served,
    plans: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key = TemporaryKey(
        aws_access_key_id=served.owner.aws_access_key_id,
        secret=served.owner.secret,
        endpoint="{}:{}".format(*served.address),
        region="eu-north1",
        expires_at=contract.timestamp(datetime.now(UTC) + timedelta(hours=1)),
    )
    cloud.serve("neocloud.storage.v1.TemporaryKeyService/Issue", key)
    bucket = served.make_bucket()
    s3 = served.client()
    s3.put_object(Bucket=bucket, Key="test.jsonl", Body=json.dumps(CHAT).encode() + b"\n")
    s3.put_object(Bucket=bucket, Key="bad.jsonl", Body=b"{}\n")
    run(signed_in, f"s3://{bucket}/test.jsonl")
    assert plans[0].conversations == [CHAT["messages"]]
    ran = run(signed_in, f"s3://{bucket}/bad.jsonl")
    assert ran.code == 2 and f"s3://{bucket}/bad.jsonl, line 1" in ran.err
    ran = run(signed_in, f"s3://{bucket}/absent.jsonl")
    assert ran.code == 3 and f"There is no object s3://{bucket}/absent.jsonl" in ran.err
    assert run(signed_in, f"s3://{bucket}/folder/").code == 2
    monkeypatch.setattr("neocloud.cli.commands.evaluate.LARGEST_BYTES", 10)
    ran = run(signed_in, f"s3://{bucket}/test.jsonl")
    assert ran.code == 2 and "at most 10 are read" in ran.err
