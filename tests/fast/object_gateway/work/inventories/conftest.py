from collections.abc import Iterator

import pytest

from tests.fast.object_gateway.s3.served import Served, serving
from tests.fast.object_gateway.work.inventories.cloud import Inventories


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One for a whole module; each test makes its own buckets."""
    with serving(tmp_path_factory.mktemp("inventories")) as served:
        yield served


@pytest.fixture
def inventories(served: Served) -> Inventories:
    return Inventories(served, served.make_bucket(), served.make_bucket())
