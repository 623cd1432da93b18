"""The use of a GPU, as a node's agent reads it, and the peak that a model's data sheet gives.

Series have the names and units of NVIDIA's dcgm-exporter, so public dashboards show both. A measure that a
GPU or its driver does not report has no value: it is never 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Measure(NamedTuple):
    series: str
    most: float
    """Upper limit: a number above it, or below 0, is not a reading."""
    description: str


MEASURES: Mapping[str, Measure] = {
    "utilisation": Measure("DCGM_FI_DEV_GPU_UTIL", 100, "GPU utilisation (in %)."),
    "memory_utilisation": Measure("DCGM_FI_DEV_MEM_COPY_UTIL", 100, "Memory utilisation (in %)."),
    "memory_used": Measure("DCGM_FI_DEV_FB_USED", 1 << 22, "Framebuffer memory used (in MiB)."),
    "power": Measure("DCGM_FI_DEV_POWER_USAGE", 10_000, "Power draw (in W)."),
    "temperature": Measure("DCGM_FI_DEV_GPU_TEMP", 200, "GPU temperature (in °C)."),
    "sm_clock": Measure("DCGM_FI_DEV_SM_CLOCK", 10_000, "SM clock frequency (in MHz)."),
    "memory_clock": Measure("DCGM_FI_DEV_MEM_CLOCK", 50_000, "Memory clock frequency (in MHz)."),
    "tensor_active": Measure(
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 1, "Ratio of cycles in which a tensor core is active."
    ),
}


@dataclass(frozen=True)
class GpuUse:
    index: int
    """Index by NVML, in the container of the agent."""
    model: str
    values: Mapping[str, float] = field(default_factory=dict[str, float])
    """Values by the names of MEASURES, of those that the GPU tells."""


class Peak(NamedTuple):
    model: str
    """NVML's name."""
    tflops: float
    """BF16 by tensor cores, dense: half of the figure with sparsity."""
    source: str


_H100 = "NVIDIA H100 data sheet"
_H200 = "NVIDIA H200 data sheet"
_A100 = "NVIDIA A100 data sheet"
PEAKS = (
    Peak("NVIDIA H100 80GB HBM3", 989, _H100),
    Peak("NVIDIA H100 PCIe", 756, _H100),
    Peak("NVIDIA H100 NVL", 835, _H100),
    Peak("NVIDIA H200", 989, _H200),
    Peak("NVIDIA H200 NVL", 835, _H200),
    Peak("NVIDIA A100-SXM4-40GB", 312, _A100),
    Peak("NVIDIA A100-SXM4-80GB", 312, _A100),
    Peak("NVIDIA A100-PCIE-40GB", 312, _A100),
    Peak("NVIDIA A100 80GB PCIe", 312, _A100),
)
"""Models with a peak that is known. Others have no estimate of TFLOP/s."""
OTHER_MODEL = "other"
_TFLOPS = {each.model: each.tflops for each in PEAKS}


def model_label(model: str) -> str:
    """Return the model for a label: a word of a fixed list, since a node could report any text."""
    return model if model in _TFLOPS else OTHER_MODEL


def peak_tflops(model: str) -> float | None:
    return _TFLOPS.get(model)


def tflops_expression() -> str:
    """Return the estimated TFLOP/s of each GPU in PromQL: tensor cores active times the peak of its model.

    A GPU that its node's agent and a dcgm-exporter both report counts once.
    """
    series = MEASURES["tensor_active"].series
    models = {tflops: [each.model for each in PEAKS if each.tflops == tflops] for tflops in _TFLOPS.values()}
    parts = (f'{series}{{modelName=~"{"|".join(names)}"}} * {tflops:g}' for tflops, names in models.items())
    return f"(max by (cluster, node, gpu) ({' or '.join(parts)}))"
