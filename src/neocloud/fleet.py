"""What the machine has, in the terms of platforms: processors, memory, and GPUs by type.

A type stands in `--gres=gpu:<type>:<n>` and in a platform's name; it is found from the name that a driver
gives (NVML, nvidia-smi). The board matters where it changes what the GPU can do: an H100 on SXM has
NVLink and HBM3, one on PCIe has not, so they are two types.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.engines.base import Capabilities

_PATTERNS = (
    (re.compile(r"\bH200 NVL\b"), "h200-nvl"),
    (re.compile(r"\bH200\b"), "h200"),
    (re.compile(r"\bH100 PCIe\b"), "h100-pcie"),
    (re.compile(r"\bH100 NVL\b"), "h100-nvl"),
    (re.compile(r"\bH100\b"), "h100"),
    (re.compile(r"\bL40S\b"), "l40s"),
    (re.compile(r"\bB300\b"), "b300"),
    (re.compile(r"\bB200\b"), "b200"),
    (re.compile(r"\bRTX ?PRO ?6000\b|\bRTX6000\b", re.IGNORECASE), "rtx6000"),
    (re.compile(r"\bA100\b.*\bPCIe\b", re.IGNORECASE), "a100-pcie"),
    (re.compile(r"\bA100\b"), "a100"),
)
_VENDOR_WORDS = frozenset({"nvidia", "amd", "tesla", "geforce", "quadro"})


def gpu_type(model: str) -> str:
    """Return the type of a model: "NVIDIA H100 80GB HBM3" is "h100". A model without a pattern keeps its
    own name: "NVIDIA T4" is "t4"."""
    for pattern, name in _PATTERNS:
        if pattern.search(model):
            return name
    words = [word for word in re.findall(r"[a-z0-9]+", model.lower()) if word not in _VENDOR_WORDS]
    return "-".join(words) or "gpu"


@dataclass(frozen=True)
class Inventory:
    """What the engine's capabilities say of the machine."""

    cpus: int
    memory_mib: int
    gpus: Mapping[str, int] = field(default_factory=dict)
    """GPU type to how many there are."""

    @classmethod
    def of(cls, capabilities: Capabilities) -> "Inventory":
        found = Counter(gpu_type(accelerator.model) for accelerator in capabilities.accelerators)
        return cls(capabilities.cpus, capabilities.memory_mib, dict(found))

    def gpu_count(self, type_name: str) -> int:
        """GPUs of one type, or all of them for ""."""
        return self.gpus.get(type_name, 0) if type_name else sum(self.gpus.values())
