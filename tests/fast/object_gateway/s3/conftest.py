import pytest

from tests.fast.object_gateway.s3.served import Served, serving


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory):
    """One server for a whole module; each test makes its own bucket."""
    with serving(tmp_path_factory.mktemp("objects")) as served:
        yield served


@pytest.fixture
def bucket(s3: Served, request: pytest.FixtureRequest) -> str:
    return s3.make_bucket()
