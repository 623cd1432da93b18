from pathlib import Path

import pytest

from tests.fast.engines.gpus.machine import Kernel, Nvml, build_nvml


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Nvml:
    return Nvml(nvml_library, tmp_path / "nvml.txt")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    kernel = Kernel(tmp_path / "root")
    kernel.load("vfio-pci")
    return kernel
