# pyright: standard
"""Fixtures for tests of clients. In a conftest.py: `pytest_plugins = ["neocloud.testing.fixtures"]`."""

from collections.abc import Iterator

import pytest

from neocloud.testing.emulator import Emulator, emulator


@pytest.fixture(scope="session")
def neocloud_emulator_server() -> Iterator[Emulator]:
    """One emulator for all tests: it starts in about a second and holds what tests leave in it."""
    with emulator() as running:
        yield running


@pytest.fixture
def neocloud_emulator(neocloud_emulator_server: Emulator) -> Iterator[Emulator]:
    """An emulated cloud without faults: endpoint, credentials file, project, `sdk()` and `inject(...)`."""
    neocloud_emulator_server.clear_faults()
    yield neocloud_emulator_server
    neocloud_emulator_server.clear_faults()
