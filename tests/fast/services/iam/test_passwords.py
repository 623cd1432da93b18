"""Storage of passwords, and counting of wrong ones. IAM-01."""

import asyncio
from datetime import UTC, datetime, timedelta

import pyotp
import pytest
from argon2 import PasswordHasher, extract_parameters
from argon2.low_level import Type
from pyotp.totp import TOTP

from neocloud.core import contract
from neocloud.services.iam.access.passwords import (
    MAX_CONCURRENT,
    MAX_WAITING,
    PasswordChecker,
    generate_password,
    password_hash,
    put_password_hash,
)
from neocloud.services.iam.rules.federations import issuer_fault
from neocloud.services.iam.rules.people import totp_step
from tests.fast.services.iam.conftest import Cloud
from tests.fast.services.iam.people import PASSWORD, make_user, sign_in

NOW = datetime(2026, 11, 21, tzinfo=UTC)
CHEAP = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)


async def test_passwords_are_hashed_with_argon2id_as_its_rfc_says() -> None:
    hashed = await PasswordChecker().hash(PASSWORD)
    found = extract_parameters(hashed)
    assert (found.type, found.time_cost, found.memory_cost) == (Type.ID, 3, 65536)


async def test_only_the_password_itself_matches() -> None:
    checker = PasswordChecker(CHEAP)
    hashed = await checker.hash(PASSWORD)
    assert await checker.matches(PASSWORD, hashed)
    for password, kept in ((PASSWORD + " ", hashed), (PASSWORD, None), (PASSWORD, "damaged"), ("", hashed)):
        assert not await checker.matches(password, kept)


async def test_a_hash_of_weaker_times_is_replaced_at_the_next_sign_in(cloud: Cloud) -> None:
    account_id = await make_user(cloud)
    weak = PasswordHasher(time_cost=1, memory_cost=32, parallelism=1).hash(PASSWORD)
    await cloud.store.write(lambda tx: put_password_hash(tx, account_id, weak))
    await sign_in(cloud)
    kept = await cloud.store.read(lambda tx: password_hash(tx, account_id))
    assert kept != weak and not CHEAP.check_needs_rehash(kept or "")
    await sign_in(cloud)


async def test_a_crowd_is_sent_away_before_it_takes_all_memory() -> None:
    checker = PasswordChecker(CHEAP)
    crowd = MAX_CONCURRENT + MAX_WAITING + 6
    ends = await asyncio.gather(*(checker.hash(PASSWORD) for _ in range(crowd)), return_exceptions=True)
    refused = [end for end in ends if isinstance(end, contract.ApiError)]
    assert len(refused) >= 6
    assert {error.code for error in refused} == {contract.Code.RESOURCE_EXHAUSTED}
    assert await checker.hash(PASSWORD)


def test_generated_passwords_differ_and_are_long() -> None:
    made = {generate_password() for _ in range(100)}
    assert len(made) == 100
    assert all(len(set(password)) > 8 for password in made)


def test_a_code_is_good_for_a_step_before_and_after_and_once() -> None:
    secret = pyotp.random_base32()
    totp = TOTP(secret)
    step = int(NOW.timestamp()) // 30
    for offset, expected in ((-2, None), (-1, step - 1), (0, step), (1, step + 1), (2, None)):
        code = totp.at(NOW + timedelta(seconds=30 * offset))
        assert totp_step(secret, f"{code[:3]} {code[3:]}", NOW, 0) == expected
    assert totp_step(secret, totp.at(NOW), NOW, last_step=step) is None


@pytest.mark.parametrize(
    ("url", "is_fine"),
    [
        ("https://login.example", True),
        ("https://login.example/realms/bank", True),
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080/x", True),
        ("http://[::1]:1", True),
        ("http://login.example", False),
        ("http://127.0.0.1.example", False),
        ("https://user@login.example", False),
        ("https://login.example/?a=b", False),
        ("https://", False),
        ("https://[x", False),
        ("ftp://login.example", False),
        ("", False),
    ],
)
def test_issuers_are_https_or_on_this_machine(url: str, is_fine: bool) -> None:
    assert (issuer_fault(url) == "") == is_fine
