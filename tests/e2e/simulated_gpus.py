"""GPUs that are made up, for a real cloud on a machine without any: what is tested with them is simulated.

The control plane asks a stand-in for NVML and looks at a made-up PCI bus. Podman gives containers device
files that are /dev/null by another name, and an `nvidia-smi` that lists a GPU and does nothing else.
"""

import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from neocloud.engines.base import Accelerator
from neocloud.engines.podman.gpus.cdi import FOLDERS
from tests.fast.engines.gpus.machine import Kernel, Nvml, build_nvml, l40s

CDI = FOLDERS[-1]
SPEC, LISTER = CDI / "neocloud-test-nvidia.json", CDI / "neocloud-test-lister"
NULL = os.makedev(1, 3)
SMI = """#!/bin/sh
[ "$*" = -L ] || { echo "nvidia-smi: simulated; it only knows -L" >&2; exit 9; }
echo "GPU 0: simulated"
"""
SITE = """
import os, sys
from pathlib import Path

if sys.prefix == os.environ["SIMULATED_PREFIX"]:
    from neocloud.engines.podman.gpus.pci import PciBus

    PciBus.__init__.__defaults__ = (Path(os.environ["SIMULATED_MACHINE"]), None)
"""
"""Every Python of the cloud reads it when it starts: there is no option for another PCI bus."""


@contextmanager
def simulated_gpus(folder: Path, count: int) -> Iterator[Mapping[str, str]]:
    """Put GPUs into this machine; yields the environment in which a cloud finds them."""
    devices = [Path(f"/dev/nvidia{number}") for number in range(count)]
    if any(device.exists() and os.stat(device).st_rdev != NULL for device in devices):
        pytest.skip("this machine has GPUs of its own")
    found = [l40s(number) for number in range(count)]
    variables = _machine(folder, found)
    try:
        _give_to_containers(found, devices)
        yield variables
    finally:
        for path in (*devices, SPEC, LISTER):
            path.unlink(missing_ok=True)


def _machine(folder: Path, found: list[Accelerator]) -> Mapping[str, str]:
    """Make what the control plane looks at."""
    kernel = Kernel(folder / "machine")
    for gpu in found:
        kernel.add(gpu.pci_address, "")
    nvml = Nvml(build_nvml(folder), folder / "nvml.txt")
    nvml.answers(*found)
    (folder / "sitecustomize.py").write_text(SITE)
    return {
        "LD_LIBRARY_PATH": str(folder),
        "MOCK_NVML": str(nvml.scenario),
        "PYTHONPATH": ":".join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
        "SIMULATED_MACHINE": str(kernel.root),
        "SIMULATED_PREFIX": sys.prefix,
    }


def _give_to_containers(found: list[Accelerator], devices: list[Path]) -> None:
    """Describe the device files to Podman, as `nvidia-ctk cdi generate` does."""
    for device in devices:
        device.unlink(missing_ok=True)
        os.mknod(device, stat.S_IFCHR | 0o666, NULL)
        device.chmod(0o666)
    CDI.mkdir(mode=0o755, parents=True, exist_ok=True)
    LISTER.write_text(SMI)
    LISTER.chmod(0o755)
    program = {"hostPath": str(LISTER), "containerPath": "/usr/bin/nvidia-smi", "options": ["ro", "bind"]}
    spec = {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {"name": gpu.uuid, "containerEdits": {"deviceNodes": [{"path": str(device)}]}}
            for gpu, device in zip(found, devices, strict=True)
        ],
        "containerEdits": {"mounts": [program]},
    }
    SPEC.write_text(json.dumps(spec))
