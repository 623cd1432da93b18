from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fast.services.registry.cloud import RegistryCloud, cloud_in_process


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[RegistryCloud]:
    async with cloud_in_process(tmp_path) as ready:
        yield ready
