"""One real deployment of a tiny model for all tests of this folder: vLLM in a pod, made with `neo`.

A start takes most of a minute and a core: tests share it and leave it READY, without adapters, as they found
it.
"""

from pathlib import Path

import pytest

from tests.e2e.cloud import Cloud
from tests.e2e.inference.served import Served


@pytest.fixture(scope="package")
def served(cloud: Cloud, model: Path) -> Served:
    """READY, and takes adapters."""
    known = ("--license", "Apache-2.0", "--tool-call-parser", "hermes")
    cloud.neo("model", "add", "tiny", str(model), *known)
    shape = ("--platform", "cpu-local", "--preset", "2vcpu-4gb")
    cloud.neo("deploy", "tiny", *shape, "--max-adapters", "4", seconds=400)
    return Served(cloud, "tiny", model)
