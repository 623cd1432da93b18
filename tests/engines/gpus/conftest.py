import shutil
import subprocess
from pathlib import Path

import pytest

from tests.engines.gpus.machine import Kernel, Nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc")
    assert compiler, "Install gcc: scripts/install-debian-packages test"
    library = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("mock_nvml.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Nvml:
    return Nvml(nvml_library, tmp_path / "nvml.txt")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    kernel = Kernel(tmp_path / "root")
    kernel.load("vfio-pci")
    return kernel
