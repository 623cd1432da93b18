from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fast.services.storage.cloud import StorageCloud, cloud_in_process


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[StorageCloud]:
    async with cloud_in_process(tmp_path) as ready:
        yield ready
