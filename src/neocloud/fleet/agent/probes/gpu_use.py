"""Read the use of GPUs by NVML, in a process of its own: its calls are others than those of the checks, and
one that hangs takes no check with it.

Activity of tensor cores comes from GPM (Hopper and later), as the mean between two samples.
"""

import time
from collections.abc import Mapping
from typing import Any

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.agent.probes.gpus import MOST_GPUS, load, name_of, simulated_by
from neocloud.fleet.nodes.gpu_use import MEASURES, GpuUse

SAMPLE_SECONDS = 1.0
"""Between the two samples. NVIDIA asks for 100 ms at least."""
TENSOR_METRIC = 5
"""NVML_GPM_METRIC_ANY_TENSOR_UTIL, in percent."""


def gpu_use(tree: Tree, expected: Expected) -> ProbeResult:
    found = ProbeResult()
    nvml = load(ProbeResult(), [], Expected())
    if nvml is None:
        return found  # the probe `gpus` says why
    found.simulated = simulated_by(nvml)
    try:
        count = min(MOST_GPUS, nvml.nvmlDeviceGetCount())
    except nvml.NVMLError:
        return found
    handles = dict[int, object]()
    for index in range(count):
        try:
            handles[index] = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError:
            continue  # a check of `gpus` fails
    active = _tensor_active(nvml, handles)
    for index, handle in handles.items():
        values = _values(nvml, handle) | active.get(index, {})
        if values:
            found.gpus.append(GpuUse(index, name_of(nvml, handle), values))
    return found


def _values(nvml: Any, handle: object) -> dict[str, float]:
    """Return what this GPU tells; a call that it refuses leaves a value out."""

    def use() -> Mapping[str, float]:
        rates = nvml.nvmlDeviceGetUtilizationRates(handle)
        return {"utilisation": rates.gpu, "memory_utilisation": rates.memory}

    calls = (
        use,
        lambda: {"memory_used": nvml.nvmlDeviceGetMemoryInfo(handle).used / (1 << 20)},
        lambda: {"power": nvml.nvmlDeviceGetPowerUsage(handle) / 1000},
        lambda: {"temperature": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)},
        lambda: {"sm_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)},
        lambda: {"memory_clock": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)},
    )
    found = dict[str, float]()
    for call in calls:
        try:
            found |= call()
        except nvml.NVMLError:
            continue
    return {name: float(value) for name, value in found.items() if 0 <= value <= MEASURES[name].most}


def _tensor_active(nvml: Any, handles: Mapping[int, object]) -> dict[int, dict[str, float]]:
    """Return the activity of each GPU that has GPM and lets this process read it."""
    before = {index: _sample(nvml, handle) for index, handle in handles.items()}
    if not any(before.values()):
        return {}
    time.sleep(SAMPLE_SECONDS)
    found = dict[int, dict[str, float]]()
    for index, first in before.items():
        last = _sample(nvml, handles[index]) if first is not None else None
        percent = _percent(nvml, first, last) if last is not None else None
        if percent is not None:
            found[index] = {"tensor_active": percent / 100}
    return found


def _sample(nvml: Any, handle: object) -> object:
    """Return a sample, which the end of this process frees; None without GPM."""
    try:
        if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        return nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc())
    except nvml.NVMLError:
        return None


def _percent(nvml: Any, first: object, last: object) -> float | None:
    asked = nvml.c_nvmlGpmMetricsGet_t()
    asked.version, asked.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, 1
    asked.sample1, asked.sample2 = first, last
    asked.metrics[0].metricId = TENSOR_METRIC
    try:
        answer = nvml.nvmlGpmMetricsGet(asked).metrics[0]
    except nvml.NVMLError:
        return None
    is_read = answer.nvmlReturn == nvml.NVML_SUCCESS and 0 <= answer.value <= 100
    return float(answer.value) if is_read else None
