"""One cloud and one cluster for all tests of this folder, made of the real parts.

Images are built once into a folder that outlives the tests ($NEOCLOUD_TEST_IMAGES, default `.cache/images`);
everything else lies in a temporary folder and is destroyed at the end.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.e2e.cloud import Cloud, run
from tests.e2e.cluster import Cluster
from tests.e2e.tiny_model import tiny_model


@pytest.fixture(scope="package")
def images() -> Path:
    """The folder with current images."""
    folder = Path(os.environ.get("NEOCLOUD_TEST_IMAGES", ROOT / ".cache" / "images")).absolute()
    for name, *options in (("jail",), ("slurm",), ("launcher",), ("machine", "--only", "tiny")):
        run([sys.executable, ROOT / "images" / name / "build", "--output", folder, *options])
    return folder


@pytest.fixture(scope="session")
def model() -> Path:
    """The folder of a tiny base model of the Qwen3 architecture that knows a bank's words."""
    return tiny_model()


@pytest.fixture(scope="package")
def cloud(images: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A running cloud."""
    cloud = Cloud.prepare(tmp_path_factory.mktemp("cloud"), images)
    try:
        cloud.up()
        yield cloud
    finally:
        cloud.neo("destroy", "--yes")


@pytest.fixture(scope="package")
def bank(cloud: Cloud) -> Cluster:
    """A READY cluster with two workers. Tests leave it as they found it."""
    return Cluster.create(cloud, "bank", "--workers", "2", "--preset", "2vcpu-4gb")


@pytest.fixture
def local_user(bank: Cluster) -> Iterator[str]:
    """The name of a user of `bank` who is not root, made with `useradd` in its shared root."""
    name = "lou"
    bank.ssh(f"useradd --create-home --shell /bin/bash {name}; sacctmgr -i add user {name} account=root")
    yield name
    bank.ssh(f"userdel -r {name}; sacctmgr -i remove user {name}; true")
