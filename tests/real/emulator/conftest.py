"""One emulator for all tests here, and the official SDK to look at it with."""

import itertools
from collections.abc import Callable, Iterator

import pytest
from nebius.sdk import SDK

from neocloud.testing.emulator import Emulator
from neocloud.testing.fixtures import neocloud_emulator, neocloud_emulator_server  # noqa: F401

_numbers = itertools.count(1)


@pytest.fixture
def sdk(neocloud_emulator: Emulator) -> Iterator[SDK]:  # noqa: F811  that is how pytest hands it in
    sdk = neocloud_emulator.sdk()
    yield sdk
    sdk.sync_close()


@pytest.fixture
def new_name() -> Callable[[], str]:
    """A name that no other test has used."""
    return lambda: f"data-{next(_numbers)}"
