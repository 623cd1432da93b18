"""What the machine has, in the terms of platforms: processors, memory, and GPUs by type."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from neocloud.engines.base import Capabilities
from neocloud.engines.gpu_types import gpu_type


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
