from collections.abc import Iterator

import pytest

from tests.fast.object_gateway.s3.served import Served, serving
from tests.fast.object_gateway.work.transfers.cloud import Transfers


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """The source and the destination, for a whole module; each test makes its own buckets."""
    folder = tmp_path_factory.mktemp("transfers")
    with (
        serving(folder / "source") as source,
        serving(folder / "destination", allow_private_transfers=True) as destination,
    ):
        yield source, destination


@pytest.fixture
def transfers(stores: tuple[Served, Served]) -> Transfers:
    source, destination = stores
    return Transfers(destination, source.url, source, source.make_bucket(), destination.make_bucket())
