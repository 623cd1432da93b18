"""Keys and rights while the control plane does not answer."""

import asyncio
from pathlib import Path

import pytest

from neocloud.data_plane.control_plane_client import ControlPlaneUnavailable
from neocloud.object_gateway.control_plane import GrpcControlPlane
from neocloud.object_gateway.s3.authorizer import Authorizer, caller_of
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_gateway.s3.settings import S3Settings
from neocloud.object_gateway.s3.signature import Scope
from neocloud.testing.object_control_plane import PERMISSIONS, Account, FakeControlPlane
from neocloud.testing.waiting import FakeClock

KEY = Account("NCAK000000000001", "secret")
SCOPE = Scope(KEY.aws_access_key_id, "20260101", "eu-north1")
SETTINGS = S3Settings(stale_seconds=60, down_seconds=600)


class Asked:
    """An authorizer of which a key and a right are known."""

    def __init__(self) -> None:
        self.clock, self.control_plane = FakeClock(), FakeControlPlane()
        self.account = self.control_plane.add(Account(**vars(KEY)))
        self.authorizer = Authorizer(self.control_plane, self.clock, SETTINGS)

    async def permissions(self) -> frozenset[str]:
        key = await self.authorizer.signing_key(SCOPE, "127.0.0.1")
        return await self.authorizer.permissions(caller_of(key), KEY.project_id)

    async def is_refused(self) -> bool:
        try:
            await self.permissions()
        except S3Error as error:
            assert error.code == "ServiceUnavailable"
            return True
        return False


@pytest.fixture
async def asked() -> Asked:
    found = Asked()
    assert await found.permissions() == PERMISSIONS
    return found


async def pass_seconds(asked: Asked, seconds: float, *, hearing: bool = False) -> None:
    for _ in range(int(seconds / 10)):
        await asked.clock.advance(10)
        if hearing:
            asked.authorizer.heard()


async def test_while_it_is_heard_answers_are_kept_for_their_time(asked: Asked) -> None:
    await pass_seconds(asked, 50, hearing=True)
    asked.control_plane.accounts[KEY.aws_access_key_id].permissions = frozenset()
    assert await asked.permissions() == PERMISSIONS, "it would have said so"
    asked.authorizer.forget()
    assert await asked.permissions() == frozenset()


async def test_a_control_plane_that_is_not_heard_is_asked_each_time(asked: Asked) -> None:
    await pass_seconds(asked, 40)
    signs = asked.control_plane.signs
    asked.control_plane.accounts[KEY.aws_access_key_id].permissions = frozenset()
    assert await asked.permissions() == frozenset() and asked.control_plane.signs == signs + 1


async def test_where_it_does_not_answer_a_right_counts_for_a_minute(asked: Asked) -> None:
    asked.control_plane.is_away = True
    await pass_seconds(asked, 50)
    assert not await asked.is_refused()
    await pass_seconds(asked, 10)
    assert await asked.is_refused()
    asked.control_plane.is_away = False
    assert await asked.permissions() == PERMISSIONS


async def test_where_nothing_listens_known_callers_go_on_for_ten_minutes(asked: Asked) -> None:
    asked.control_plane.is_down = True
    await pass_seconds(asked, 590)
    assert not await asked.is_refused()
    outsider = Scope("NCAK000000000002", "20260101", "eu-north1")
    with pytest.raises(S3Error, match="not reachable"):
        await asked.authorizer.signing_key(outsider, "127.0.0.1")
    await pass_seconds(asked, 10)
    assert await asked.is_refused()


async def test_one_that_is_up_and_silent_after_it_was_down_ends_what_was_known(asked: Asked) -> None:
    asked.control_plane.is_down = True
    await pass_seconds(asked, 120)
    assert not await asked.is_refused()
    asked.control_plane.is_down, asked.control_plane.is_away = False, True
    assert await asked.is_refused()


async def test_a_key_that_was_withdrawn_is_not_taken_again_when_it_falls_silent(asked: Asked) -> None:
    del asked.control_plane.accounts[KEY.aws_access_key_id]
    asked.authorizer.forget()
    with pytest.raises(S3Error, match="does not exist"):
        await asked.permissions()
    asked.control_plane.is_down = True
    await pass_seconds(asked, 20)
    assert await asked.is_refused()


async def test_a_port_without_a_listener_is_told_from_one_that_is_silent(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("key")
    silent = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()[:2]
    client = GrpcControlPlane(f"{host}:{port}", tmp_path / "key")
    with pytest.raises(ControlPlaneUnavailable) as caught:
        await client.authorize("subject", "bucket")
    assert not caught.value.is_down
    silent.close()
    await silent.wait_closed()
    with pytest.raises(ControlPlaneUnavailable) as caught:
        await client.authorize("subject", "bucket")
    assert caught.value.is_down
    await client.close()
