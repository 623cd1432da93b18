"""Faults of calls, as the official SDK sees them (CMP, SDK: clients' tests against bad days)."""

import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from nebius.aio.service_error import RequestError
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.compute.v1 import (
    CreateFilesystemRequest,
    FilesystemServiceClient,
    FilesystemSpec,
    FilesystemStatus,
    GetFilesystemRequest,
    ListFilesystemsRequest,
)
from nebius.sdk import SDK

from neocloud.client.errors import ClientError
from neocloud.testing.emulator import Emulator

SSD = FilesystemSpec.FilesystemType.NETWORK_SSD
READY = FilesystemStatus.State.READY
CREATE = "FilesystemService/Create"


@pytest.fixture
def request_of(neocloud_emulator: Emulator, new_name: Callable[[], str]) -> CreateFilesystemRequest:
    metadata = ResourceMetadata(parent_id=neocloud_emulator.project_id, name=new_name())
    return CreateFilesystemRequest(metadata=metadata, spec=FilesystemSpec(type=SSD, size_gibibytes=1))


def refused(call: Any, **options: Any) -> Any:
    with pytest.raises(RequestError) as caught:
        call(**options)
    return caught.value.status


def test_without_faults_a_change_is_done_when_it_answers(sdk: SDK, request_of: Any) -> None:
    filesystems = FilesystemServiceClient(sdk)
    operation = filesystems.create(request_of).wait()
    assert operation.done() and operation.successful()
    found = filesystems.get(GetFilesystemRequest(id=operation.resource_id)).wait()
    assert found.status.state == READY


def test_a_quota_is_exceeded_for_so_many_calls(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    neocloud_emulator.inject("quota-exceeded", calls=CREATE, count=2)
    filesystems = FilesystemServiceClient(sdk)
    for _ in range(2):
        status = refused(filesystems.create(request_of).wait)
        assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert status.service_errors[0].quota_failure.violations[0].quota == "compute.filesystem.count"
    assert filesystems.create(request_of).wait().done()


def test_there_is_no_capacity(neocloud_emulator: Emulator, sdk: SDK, request_of: Any) -> None:
    neocloud_emulator.inject("no-capacity", calls="nebius.compute.v1.FilesystemService/*")
    status = refused(FilesystemServiceClient(sdk).create(request_of).wait)
    assert status.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(status.service_errors[0].not_enough_resources.violations) == 1


def test_the_sdk_retries_what_is_unavailable_for_a_moment(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    fault = neocloud_emulator.inject("unavailable", calls=CREATE, count=1)
    assert FilesystemServiceClient(sdk).create(request_of).wait().done()
    assert _calls_met(neocloud_emulator, fault.id) == 1


@pytest.mark.parametrize("kind", ["unavailable", "deadline-exceeded", "internal", "aborted"])
def test_a_call_is_refused_with_the_code_that_was_asked_for(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any, kind: str
) -> None:
    neocloud_emulator.inject(kind, calls=CREATE, unlimited=True)
    status = refused(FilesystemServiceClient(sdk).create(request_of, retries=0).wait)
    assert status.code is grpc.StatusCode[kind.replace("-", "_").upper()]
    assert "Injected" in status.message


def test_a_lost_answer_does_not_make_a_second_resource(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    """The SDK sends the call again with the same idempotency key, and finds its work done."""
    neocloud_emulator.inject("unavailable", calls=CREATE, answer_lost=True)
    filesystems = FilesystemServiceClient(sdk)
    operation = filesystems.create(request_of).wait()
    parent = ListFilesystemsRequest(parent_id=neocloud_emulator.project_id)
    named = [x for x in filesystems.list(parent).wait().items if x.metadata.name == request_of.metadata.name]
    assert [each.metadata.id for each in named] == [operation.resource_id]


def test_a_slow_operation_is_pending_and_then_done(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    neocloud_emulator.inject("slow-operation", calls=CREATE, delay_seconds=15)
    filesystems = FilesystemServiceClient(sdk)
    begin = time.monotonic()
    operation = filesystems.create(request_of).wait()
    assert not operation.done()
    get = GetFilesystemRequest(id=operation.resource_id)
    assert filesystems.get(get).wait().status.state == FilesystemStatus.State.CREATING
    operation.sync_wait(interval=0.02)
    assert time.monotonic() - begin >= 15
    assert filesystems.get(get).wait().status.state == READY


def test_reads_do_not_use_up_a_delay_of_operations(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    neocloud_emulator.inject("slow-operation", calls="FilesystemService/*", delay_seconds=0.3)
    filesystems = FilesystemServiceClient(sdk)
    filesystems.list(ListFilesystemsRequest(parent_id=neocloud_emulator.project_id)).wait()
    assert not filesystems.create(request_of).wait().done()


def test_a_slow_call_answers_late(neocloud_emulator: Emulator, sdk: SDK, request_of: Any) -> None:
    neocloud_emulator.inject("slow-call", calls=CREATE, delay_seconds=0.2)
    begin = time.monotonic()
    assert FilesystemServiceClient(sdk).create(request_of).wait().done()
    assert time.monotonic() - begin >= 0.2


def test_what_makes_no_sense_is_refused(neocloud_emulator: Emulator) -> None:
    for kind, details, words in (
        ("unavailable", {}, "spec.calls is required"),
        ("unavailable", {"calls": "DiscService/Create"}, "matches no method"),
        ("slow-operation", {"calls": "DiskService/Get"}, "matches no method that starts an operation"),
        ("pod-crash", {}, "spec.resource_id is required"),
        ("slow-call", {"calls": CREATE, "delay_seconds": 0}, "spec.slow_call.delay"),
        ("quota-exceeded", {"calls": CREATE, "pod": "x"}, "does not use a pod"),
    ):
        with pytest.raises(ClientError) as caught:
            neocloud_emulator.inject(kind, **details)
        assert caught.value.code == "INVALID_ARGUMENT"
        assert words in str(caught.value)


def test_a_fault_of_everything_can_still_be_cleared(
    neocloud_emulator: Emulator, sdk: SDK, request_of: Any
) -> None:
    neocloud_emulator.inject("internal", calls="*", unlimited=True)
    neocloud_emulator.clear_faults()
    assert FilesystemServiceClient(sdk).create(request_of).wait().done()


def _calls_met(emulator: Emulator, fault_id: str) -> int:
    faults = emulator.client.call("neocloud.emulator.v1.FaultService/List").items
    return next(fault.calls_met for fault in faults if fault.id == fault_id)
