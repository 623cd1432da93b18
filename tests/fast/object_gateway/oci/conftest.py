import itertools

import pytest

from tests.fast.object_gateway.oci.client import Registry
from tests.fast.object_gateway.s3.served import Served, serving

_NUMBERS = itertools.count(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory):
    with serving(tmp_path_factory.mktemp("objects")) as found:
        yield found


@pytest.fixture(scope="module")
def registry(served: Served):
    """One registry for a whole module; each test has repositories of its own."""
    made = served.call(served.control_plane.make_registry())
    found = Registry(served, made.id, served.owner)
    yield found
    found.http.close()


@pytest.fixture
def repository() -> str:
    """A name that no other test uses."""
    return f"team/app-{next(_NUMBERS)}"
