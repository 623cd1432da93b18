"""Makes the launcher's modules importable, and provides a desired state that tests vary."""

import sys
from typing import Any

import pytest

from tests import ROOT

sys.path.insert(0, str(ROOT / "images/launcher/rootfs/usr/local/lib/neocloud"))


@pytest.fixture
def desired() -> dict[str, Any]:
    """machine.json, as the control plane writes it."""
    return {
        "id": "computeinstance-e00one",
        "name": "one",
        "parent_id": "project-e00lab",
        "region": "eu-north1",
        "vcpus": 2,
        "memory_mib": 2048,
        "acceleration": "tcg",
        "disks": [
            {
                "id": "computedisk-e00boot",
                "path": "/disks/0/disk.qcow2",
                "size_bytes": 10 * 2**30,
                "read_only": False,
                "device_id": "boot",
                "is_boot": True,
            }
        ],
        "filesystems": [],
        "interface": {
            "name": "eth0",
            "address": "10.128.0.5",
            "prefix_length": 24,
            "gateway": "10.128.0.1",
            "mac": "52:54:00:AB:cd:ef",
            "domain": "default-network.internal",
            "nameservers": ["10.0.0.53"],
        },
        "hostname": "worker-1",
        "user_data": "#cloud-config\nruncmd: [true]\n",
        "gpus": [],
    }
