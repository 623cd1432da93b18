"""Rate limits of one caller: beyond them, the answer says when to try again; others are not slowed down."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from neocloud.control_plane.composition import SERVICES
from neocloud.control_plane.settings_file import parse_arguments, write_settings
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.contract import ApiError
from neocloud.data_plane.addresses import source_network
from neocloud.data_plane.rate_limits import BURST_SECONDS, MAX_CALLERS, Buckets, Rate
from neocloud.server.pipeline import Rates
from neocloud.settings.settings import Settings
from tests.fast.server.walk.asking import request
from tests.fast.server.walk.cloud import TABLE, Answer, WalkedCloud, walked_cloud

PROFILE = "nebius.iam.v1.ProfileService/Get"
EXCHANGE = "nebius.iam.v1.TokenExchangeService/Exchange"
ADMIT = "neocloud.inference.v1.GatewayService/Admit"
A_FEW = 0.5
"""Calls a second: five at once, and the next after two seconds."""


class StoppedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class NothingRefilled(SystemClock):
    def monotonic(self) -> float:
        return 100.0


@pytest.fixture
async def slow_cloud(tmp_path: Path) -> AsyncIterator[WalkedCloud]:
    """One whose operator allows little, and where nothing is refilled while a test runs."""
    async with walked_cloud(tmp_path, calls_per_second=A_FEW, clock=NothingRefilled()) as ready:
        yield ready


async def answers(cloud: WalkedCloud, path: str, token: str | None) -> list[Answer]:
    """To more calls than a bucket holds."""
    message = request(path, TABLE, cloud.victim)
    return [await cloud.send(path, message, token) for _ in range(int(A_FEW * BURST_SECONDS) + 2)]


def retry_delay(answer: Answer) -> float:
    status = contract.message("google.rpc.Status").FromString(answer.details)
    found = [contract.unpack(each) for each in status.details if each.type_url.endswith("RetryInfo")]
    return found[0].retry_delay.ToTimedelta().total_seconds() if found else 0.0


def test_a_bucket_gives_its_burst_and_then_what_is_refilled() -> None:
    clock = StoppedClock()
    buckets = Buckets(Rate(10), clock)
    assert [buckets.take("one") for _ in range(10 * BURST_SECONDS)] == [0.0] * 10 * BURST_SECONDS
    assert buckets.take("one") == pytest.approx(0.1)
    assert buckets.take("another") == 0.0
    clock.now += 0.11
    assert buckets.take("one") == 0.0
    assert buckets.take("one") > 0.0


def test_no_rate_is_no_limit() -> None:
    buckets = Buckets(Rate(0), StoppedClock())
    assert not any(buckets.take("one") for _ in range(10_000))


def test_a_refusal_says_how_long_to_wait() -> None:
    rates = Rates(Rate(1), Rate(1), StoppedClock())
    for _ in range(BURST_SECONDS):
        rates.count_call("one")
    with pytest.raises(ApiError) as refused:
        rates.count_call("one")
    assert refused.value.code is contract.Code.RESOURCE_EXHAUSTED
    assert refused.value.retry_after_seconds == pytest.approx(1.0)


def test_an_ipv4_address_counts_as_the_same_in_either_notation() -> None:
    assert source_network("::ffff:192.0.2.1") == source_network("192.0.2.1")


def test_callers_are_forgotten_before_they_fill_the_memory() -> None:
    buckets = Buckets(Rate(1), StoppedClock())
    for number in range(MAX_CALLERS + 100):
        buckets.take(str(number))
    assert len(buckets._buckets) == MAX_CALLERS


def test_the_addresses_of_one_ipv6_network_are_one_caller() -> None:
    rates = Rates(Rate(1), Rate(1), StoppedClock())
    for number in range(BURST_SECONDS):
        rates.count_sign_in(f"2001:db8::{number:x}")
    with pytest.raises(ApiError):
        rates.count_sign_in("2001:db8::ffff")
    rates.count_sign_in("2001:db8:0:1::1")
    rates.count_sign_in("192.0.2.1")
    rates.count_unknown("2001:db8::ffff")


async def test_a_subject_that_calls_too_often_is_told_when_to_go_on(slow_cloud: WalkedCloud) -> None:
    found = await answers(slow_cloud, PROFILE, slow_cloud.tokens["victim"])
    assert [each.code for each in found[:5]] == ["OK"] * 5
    assert found[-1].code == "RESOURCE_EXHAUSTED"
    assert 0 < retry_delay(found[-1]) <= 1 / A_FEW
    error = contract.from_status(found[-1].details)
    (detail,) = error.details
    assert (detail.code, type(detail).RetryType.Name(detail.retry_type)) == ("too_many_requests", "CALL")
    other = await slow_cloud.send(
        PROFILE, request(PROFILE, TABLE, slow_cloud.outsider), slow_cloud.tokens["outsider"]
    )
    assert other.code == "OK"


async def test_json_says_it_in_a_header(slow_cloud: WalkedCloud) -> None:
    await answers(slow_cloud, PROFILE, slow_cloud.tokens["victim"])
    headers = {"authorization": f"Bearer {slow_cloud.tokens['victim']}", "content-type": "application/json"}
    async with httpx.AsyncClient(base_url=f"http://{slow_cloud.server.addresses.http}", timeout=60) as client:
        answer = await client.post(f"/{PROFILE}", content="{}", headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (429, "resource_exhausted")
    assert answer.headers["retry-after"] in ("1", "2")


@pytest.mark.parametrize(("path", "token"), [(EXCHANGE, None), (PROFILE, "garbage"), (PROFILE, None)])
async def test_who_is_not_signed_in_is_counted_by_address(
    slow_cloud: WalkedCloud, path: str, token: str | None
) -> None:
    found = await answers(slow_cloud, path, token)
    assert {each.code for each in found[:5]} <= {"UNAUTHENTICATED", "INVALID_ARGUMENT"}
    assert found[-1].code == "RESOURCE_EXHAUSTED" and retry_delay(found[-1]) > 0
    known = await slow_cloud.send(
        PROFILE, request(PROFILE, TABLE, slow_cloud.victim), slow_cloud.tokens["victim"]
    )
    assert known.code == "OK", "who is known is not slowed down by others behind the same address"


async def test_wrong_tokens_do_not_keep_others_from_signing_in(slow_cloud: WalkedCloud) -> None:
    await answers(slow_cloud, PROFILE, "garbage")
    answer = await slow_cloud.send(EXCHANGE, request(EXCHANGE, TABLE, slow_cloud.victim), None)
    assert answer.code != "RESOURCE_EXHAUSTED"


async def test_the_gateway_is_not_counted_as_one_caller(slow_cloud: WalkedCloud) -> None:
    assert {each.code for each in await answers(slow_cloud, ADMIT, None)} == {"PERMISSION_DENIED"}
    internal = {method.path for service in SERVICES for method in service.methods if method.is_internal}
    assert {path.rpartition("/")[0] for path in internal} == {
        "neocloud.inference.v1.GatewayService",
        "neocloud.storage.v1.ObjectGatewayService",
    }


def test_an_operator_may_choose_the_rates() -> None:
    _, settings = parse_arguments(["--calls-per-second", "7.5", "--sign-ins-per-second", "0"])
    assert (settings.calls_per_second, settings.sign_ins_per_second) == (7.5, 0)
    with pytest.raises(SystemExit):
        parse_arguments(["--calls-per-second", "-1"])


def test_neo_up_passes_the_rates_on(tmp_path: Path) -> None:
    write_settings(Settings(home=tmp_path, calls_per_second=7.5, sign_ins_per_second=0.0))
    _, settings = parse_arguments(["--home", str(tmp_path)])
    assert (settings.calls_per_second, settings.sign_ins_per_second) == (7.5, 0)
    usual = Settings()
    assert (usual.calls_per_second, usual.sign_ins_per_second) == (200.0, 50.0)
