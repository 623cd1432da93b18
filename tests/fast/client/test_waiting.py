"""Waiting for operations: asks until done, tells progress, and turns failure into an error."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from neocloud.client.connection import Client
from neocloud.client.credentials import StaticToken
from neocloud.client.errors import ClientError
from tests.fast.cli.fake_control_plane import FakeServer, operation, running_server

GET = "nebius.common.v1.OperationService/Get"


@dataclass
class FakeTime:
    now: float = 0.0
    sleeps: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds


@pytest.fixture
def cloud() -> Iterator[FakeServer]:
    with running_server() as started:
        yield started


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def client(cloud: FakeServer, time: FakeTime) -> Iterator[Client]:
    channel = grpc.insecure_channel(cloud.endpoint)
    with Client(channel, cloud.endpoint, StaticToken("t"), time.sleep, time.clock) as opened:
        yield opened


def test_a_finished_operation_is_not_asked_for_again(client: Client, cloud: FakeServer) -> None:
    client.wait(operation("x"))
    assert not cloud.requests


def test_it_asks_until_the_operation_is_done_and_tells_each_look(
    client: Client, cloud: FakeServer, time: FakeTime
) -> None:
    answers = iter([operation("x", done=False), operation("x", done=False), operation("x")])
    cloud.serve(GET, lambda request: next(answers))
    seen: list[Any] = []
    client.wait(operation("x", done=False), on_progress=seen.append)
    assert [item.HasField("status") for item in seen] == [False, False, False, True]
    assert time.sleeps == sorted(time.sleeps)


def test_a_failed_operation_raises_its_own_words(client: Client) -> None:
    with pytest.raises(ClientError, match="The disk is full") as caught:
        client.wait(operation("x", code=8, message="The disk is full. Free some space."))
    assert caught.value.code == "RESOURCE_EXHAUSTED"


def test_waiting_ends_at_its_deadline(client: Client, cloud: FakeServer, time: FakeTime) -> None:
    cloud.serve(GET, operation("x", done=False))
    with pytest.raises(ClientError, match="continues in the cloud") as caught:
        client.wait(operation("x", done=False), timeout_seconds=10)
    assert caught.value.code == "DEADLINE_EXCEEDED"
    assert 10 <= time.now < 11


def test_a_mapping_with_an_unknown_field_is_refused_before_it_is_sent(
    client: Client, cloud: FakeServer
) -> None:
    with pytest.raises(ClientError, match="idd"):
        client.call(GET, {"idd": "x"})
    assert not cloud.requests
