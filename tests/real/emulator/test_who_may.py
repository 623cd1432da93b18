"""Administrators of an emulated cloud may inject faults; in a real one no caller may (IAM, SEC)."""

from pathlib import Path

import grpc
import pytest

from neocloud.control_plane.composition import control_plane
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.engines.fake import FakeEngine
from neocloud.services.emulator.api import PERMISSION
from neocloud.services.iam.rules.roles import ROLES, allows
from neocloud.settings.settings import Settings
from neocloud.testing.emulator import Emulator

INJECT = "neocloud.emulator.v1.FaultService/Inject"


def test_only_administrators_hold_the_permission() -> None:
    assert {role for role in ROLES if allows(role, PERMISSION)} == {"admin"}


async def test_a_cloud_that_is_real_has_no_faults_to_inject(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, grpc_port=0, http_port=0)
    async with (
        control_plane(settings, FakeEngine(), clock=SystemClock()) as running,
        grpc.aio.insecure_channel(running.server.addresses.grpc) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/{INJECT}")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_without_a_token_nothing_is_injected(neocloud_emulator: Emulator) -> None:
    rpc = contract.method(INJECT)
    with grpc.insecure_channel(neocloud_emulator.endpoint) as channel:
        call = channel.unary_unary(f"/{INJECT}", request_serializer=rpc.input.SerializeToString)
        with pytest.raises(grpc.RpcError) as caught:
            call(rpc.input())
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
