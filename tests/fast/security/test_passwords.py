"""Guessing passwords: no lock is washed away, no owner is locked out, and nothing grows without bound."""

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from pyotp.totp import TOTP

from neocloud.core import contract
from neocloud.core.store import Store
from neocloud.services.iam.access import passwords as counting
from neocloud.services.iam.access.passwords import (
    MAX_CONCURRENT,
    MAX_WAITING,
    PasswordChecker,
    count_attempt,
    locked_until,
)
from neocloud.services.iam.rules.people import (
    MAX_ATTEMPTS,
    MAX_FROM_LOOPBACK,
    MAX_FROM_SOURCE,
    WINDOW,
    Counted,
    of_address,
    of_source,
)
from neocloud.testing.waiting import until
from tests.fast.services.iam.conftest import Answer, Cloud, running_cloud
from tests.fast.services.iam.people import ALICE, OWN_API, PASSWORD, make_user, sign_in, signed, try_password

WRONG = "wrong horse battery staple"


@pytest.fixture
async def cloud() -> AsyncIterator[Cloud]:
    async with running_cloud() as started:
        yield started


async def guess(cloud: Cloud, email: str, times: int, **more: Any) -> list[Answer]:
    return [await try_password(cloud, email, WRONG, **more) for _ in range(times)]


async def count(store: Store, counted: Counted, cloud: Cloud) -> Any:
    now = cloud.clock.now()
    return await store.write(lambda tx: count_attempt(tx, (counted,), now))


# Locks


async def test_a_lock_outlasts_whatever_else_is_guessed(cloud: Cloud, monkeypatch: Any) -> None:
    """The review's attack: many names, each guessed at as often, push a lock out of a full table."""
    monkeypatch.setattr(counting, "MAX_COUNTED", 20)
    monkeypatch.setattr(counting, "FORGOTTEN_TOGETHER", 5)
    victim = of_address(ALICE)
    for _ in range(MAX_ATTEMPTS):
        assert await count(cloud.store, victim, cloud) is None
    for number in range(60):
        for _ in range(MAX_ATTEMPTS):
            await count(cloud.store, of_address(f"name{number}@bank.example"), cloud)
    assert await count(cloud.store, victim, cloud) is not None
    assert await cloud.store.read(lambda tx: tx.count_marks(victim.space)) <= 20
    cloud.clock.offset += WINDOW
    assert await count(cloud.store, victim, cloud) is None


async def test_single_guesses_make_room_for_others(cloud: Cloud, monkeypatch: Any) -> None:
    monkeypatch.setattr(counting, "MAX_COUNTED", 20)
    monkeypatch.setattr(counting, "FORGOTTEN_TOGETHER", 5)
    for number in range(100):
        assert await count(cloud.store, of_address(f"name{number}@bank.example"), cloud) is None
    assert await cloud.store.read(lambda tx: tx.count_marks(of_address("").space)) <= 20


async def test_locks_survive_a_restart(tmp_path: Any) -> None:
    database = str(tmp_path / "state.db")
    async with running_cloud(database) as cloud:
        await guess(cloud, ALICE, MAX_ATTEMPTS)
    async with running_cloud(database) as cloud:
        assert (await try_password(cloud, ALICE, WRONG)).code == "resource_exhausted"


# The owner


async def test_outsiders_do_not_lock_out_who_signed_in_from_this_client_before(cloud: Cloud) -> None:
    await make_user(cloud)
    first = await try_password(cloud)
    token = first.body["deviceToken"]
    answers = await guess(cloud, ALICE, MAX_ATTEMPTS + 1)
    assert answers[-1].code == "resource_exhausted"
    assert (await try_password(cloud)).code == "resource_exhausted"
    assert (await try_password(cloud, deviceToken=token)).status == 200
    assert (await try_password(cloud)).code == "resource_exhausted"


async def test_a_device_token_allows_few_guesses_and_opens_one_account_only(cloud: Cloud) -> None:
    await make_user(cloud)
    await make_user(cloud, "bob@bank.example")
    token = (await try_password(cloud, "bob@bank.example")).body["deviceToken"]
    await guess(cloud, ALICE, MAX_ATTEMPTS)
    for given in (token, "forged", token[:-4] + "AAAA"):
        assert (await try_password(cloud, deviceToken=given)).code == "resource_exhausted"
    answers = await guess(cloud, "bob@bank.example", MAX_ATTEMPTS + 1, deviceToken=token)
    assert [each.code for each in answers[-2:]] == ["unauthenticated", "resource_exhausted"]
    assert (await try_password(cloud, "bob@bank.example")).status == 200
    call = await cloud.call("ProfileService/Get", {}, token=token)
    assert call.code == "unauthenticated"


async def test_a_device_is_forgotten_after_its_time(cloud: Cloud) -> None:
    await make_user(cloud)
    token = (await try_password(cloud)).body["deviceToken"]
    cloud.clock.offset += timedelta(days=91)
    await guess(cloud, ALICE, MAX_ATTEMPTS)
    assert (await try_password(cloud, deviceToken=token)).code == "resource_exhausted"


async def with_second_factor(cloud: Cloud) -> TOTP:
    await make_user(cloud)
    session = await sign_in(cloud)
    body = {"currentPassword": PASSWORD}
    started = await cloud.call("UserService/StartTotp", body, token=session.access, api=OWN_API)
    totp = TOTP(started.body["secret"])
    body = {"totpCode": totp.at(cloud.clock.now())}
    assert (
        await cloud.call("UserService/ConfirmTotp", body, token=session.access, api=OWN_API)
    ).status == 200
    cloud.clock.offset += timedelta(seconds=30)
    return totp


async def test_the_second_factor_gets_its_owner_in_while_the_address_is_locked(cloud: Cloud) -> None:
    totp = await with_second_factor(cloud)
    await guess(cloud, ALICE, MAX_ATTEMPTS)
    assert (await try_password(cloud)).code == "resource_exhausted"
    assert (await try_password(cloud, totpCode="000000")).code == "resource_exhausted"
    code = totp.at(cloud.clock.now())
    assert (await try_password(cloud, ALICE, WRONG, totpCode=code)).code == "unauthenticated"
    assert (await try_password(cloud, totpCode=code)).code == "resource_exhausted"  # It was used up.
    cloud.clock.offset += timedelta(seconds=30)
    signed(await try_password(cloud, totpCode=totp.at(cloud.clock.now())))


async def test_guesses_do_not_keep_who_is_signed_in_from_changing_the_password(cloud: Cloud) -> None:
    await make_user(cloud)
    session = await sign_in(cloud)
    await guess(cloud, ALICE, MAX_ATTEMPTS + 1)
    body = {"currentPassword": PASSWORD, "newPassword": "quite another long password"}
    answer = await cloud.call("UserService/ChangePassword", body, token=session.access, api=OWN_API)
    assert answer.status == 200, answer


# Where guesses come from


def test_a_network_is_one_source_and_this_machine_is_many_people() -> None:
    assert of_source("2001:db8::1") == of_source("2001:db8::ffff") != of_source("2001:db8:0:1::1")
    assert of_source("192.0.2.1") != of_source("192.0.2.2")
    assert of_source("192.0.2.1").limit == of_source("2001:db8::1").limit == MAX_FROM_SOURCE
    assert of_source("127.0.0.1").limit == of_source("::1").limit == MAX_FROM_LOOPBACK


async def test_a_source_that_guesses_at_many_names_is_slowed(cloud: Cloud) -> None:
    await make_user(cloud)
    now, source = cloud.clock.now(), of_source("127.0.0.1")
    token = (await try_password(cloud)).body["deviceToken"]
    for _ in range(source.limit):
        await cloud.store.write(lambda tx: count_attempt(tx, (source,), now))
    assert (await try_password(cloud, "never-seen@bank.example")).code == "resource_exhausted"
    assert (await try_password(cloud, deviceToken=token)).status == 200


async def test_right_passwords_do_not_use_up_a_source(cloud: Cloud) -> None:
    await make_user(cloud)
    for _ in range(3):
        await sign_in(cloud)
    now = cloud.clock.now()
    for counted in (of_source("127.0.0.1"), of_address(ALICE)):
        assert await cloud.store.read(lambda tx, each=counted: tx.mark(each.space, each.name, now)) is None
        assert await cloud.store.read(lambda tx, each=counted: locked_until(tx, (each,), now)) is None


# Memory and processors


class SlowHasher(PasswordHasher):
    """Holds each check until it is released, and counts how many run."""

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=64, parallelism=1)
        self.running, self.most, self.go = 0, 0, threading.Event()

    def verify(self, hash: Any, password: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        self.go.wait(30)
        self.running -= 1
        return super().verify(hash, password)


async def test_a_crowd_of_guesses_runs_few_at_a_time_and_is_told_when_to_come_back(cloud: Cloud) -> None:
    hasher = SlowHasher()
    checker = PasswordChecker(hasher)
    cloud.provided.add(PasswordChecker, checker)
    await checker.hash("warm")
    crowd = 64
    async with httpx.AsyncClient(base_url=cloud.http.base_url, trust_env=False, timeout=60) as http:
        body = {"email": ALICE, "password": WRONG}
        path = f"/{OWN_API}.SignInService/WithPassword"
        asked = [asyncio.ensure_future(http.post(path, json=body)) for _ in range(crowd)]
        await until(lambda: sum(each.done() for each in asked) >= crowd - MAX_CONCURRENT - MAX_WAITING)
        refused = [each.result().json() for each in asked if each.done()]
        assert {each["code"] for each in refused} == {"resource_exhausted"}
        hasher.go.set()
        await asyncio.gather(*asked)
    assert hasher.most <= MAX_CONCURRENT


async def test_who_is_sent_away_by_the_crowd_is_not_counted_as_a_wrong_password(cloud: Cloud) -> None:
    checker = PasswordChecker(PasswordHasher(time_cost=1, memory_cost=64, parallelism=1))
    cloud.provided.add(PasswordChecker, checker)
    await make_user(cloud)
    await sign_in(cloud)
    held = [checker._slots.acquire() for _ in range(MAX_CONCURRENT)]  # pyright: ignore[reportPrivateUsage]
    await asyncio.gather(*held)
    checker._waiting = MAX_WAITING  # pyright: ignore[reportPrivateUsage]
    for _ in range(MAX_ATTEMPTS + 1):
        answer = await try_password(cloud)
        assert (answer.code, "at this moment" in answer.message) == ("resource_exhausted", True)
    checker._waiting = 0  # pyright: ignore[reportPrivateUsage]
    for _ in range(MAX_CONCURRENT):
        checker._slots.release()  # pyright: ignore[reportPrivateUsage]
    signed(await try_password(cloud))


async def test_a_refusal_says_when_to_come_back() -> None:
    checker = PasswordChecker()
    checker._waiting = MAX_WAITING  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(contract.ApiError) as caught:
        await checker.hash("x")
    assert caught.value.code is contract.Code.RESOURCE_EXHAUSTED
    assert caught.value.retry_after_seconds
