"""Active checks of a GPU, in plain PyTorch: arithmetic, memory, PCIe, silent corruption, a short training.

They occupy the GPU, so they are for nodes without work. `measure` is called in a process of its own, which
ends with the check.
"""

import statistics
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from neocloud.fleet.active import corruption, training

GEMM_SIDE = 8192
GEMM_ROUNDS, GEMM_REPEATS = 5, 20
COPY_BYTES = 4 << 30
PCIE_BYTES = 1 << 30
COPY_ROUNDS = 9
SDC_SECONDS = 20.0


class DeviceMeasurement(NamedTuple):
    """One number of one device."""

    device: str
    value: float
    unit: str
    note: str = ""


def measure(name: str) -> list[DeviceMeasurement]:
    """Return what the check measured, for each GPU in turn. Raises KeyError for a name that is no check of a
    GPU, and torch's own errors where the GPU does not do its work."""
    check = CHECKS[name]
    return [check(index) for index in range(torch.cuda.device_count())]


def _gemm(index: int) -> DeviceMeasurement:
    """bf16 products of random matrices; on zeros the GPU would run faster, as it needs less power."""
    side = GEMM_SIDE
    with torch.cuda.device(index):
        generator = torch.Generator("cuda").manual_seed(1)
        a, b = (torch.randn(side, side, device="cuda", generator=generator).bfloat16() for _ in "ab")
        out = torch.empty_like(a)
        rates = [
            2 * side**3 * GEMM_REPEATS / _seconds(lambda: torch.mm(a, b, out=out), GEMM_REPEATS) / 1e12
            for _ in range(GEMM_ROUNDS)
        ]
    note = f"bf16, {side} x {side} x {side}, median of {GEMM_ROUNDS}, {min(rates):.0f} to {max(rates):.0f}"
    return _measured(index, statistics.median(rates), "TFLOP/s", note)


def _memory(index: int) -> DeviceMeasurement:
    with torch.cuda.device(index):
        size = _copy_bytes(COPY_BYTES)
        a, b = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in "ab")
        rates = [2 * size / _seconds(lambda: b.copy_(a), 1) / 1e9 for _ in range(COPY_ROUNDS)]
    note = f"copy of {size >> 20} MiB on the device, bytes read and written"
    return _measured(index, statistics.median(rates), "GB/s", note)


def _to_device(index: int) -> DeviceMeasurement:
    return _pcie(index, to_device=True)


def _from_device(index: int) -> DeviceMeasurement:
    return _pcie(index, to_device=False)


def _pcie(index: int, *, to_device: bool) -> DeviceMeasurement:
    with torch.cuda.device(index):
        size = _copy_bytes(PCIE_BYTES)
        host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        device = torch.empty(size, dtype=torch.uint8, device="cuda")
        target, source = (device, host) if to_device else (host, device)
        rates = [
            size / _seconds(lambda: target.copy_(source, non_blocking=True), 1) / 1e9
            for _ in range(COPY_ROUNDS)
        ]
    return _measured(index, statistics.median(rates), "GB/s", f"{size >> 20} MiB of pinned memory")


def _corruption(index: int) -> DeviceMeasurement:
    found = corruption.search(torch.device("cuda", index), SDC_SECONDS)
    return _measured(index, found.wrong, "wrong rounds", found.note)


def _training(index: int) -> DeviceMeasurement:
    curve = training.train(torch.device("cuda", index), training.FULL)
    deviation, step = training.deviation(curve.losses, training.golden(training.FULL))
    note = f"at step {step} of {len(curve.losses)}; {curve.tokens_per_second:,.0f} tokens/s"
    return _measured(index, 100 * deviation, "%", f"from the known loss {note}")


def _repeat(index: int) -> DeviceMeasurement:
    """Train twice: a sound GPU gives the same bits, whichever model or release of torch it is."""
    device = torch.device("cuda", index)
    first, second = (training.train(device, training.SHORT).losses for _ in range(2))
    apart = [step for step, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    note = f"the first at step {apart[0]} of {len(first)}" if apart else f"of {len(first)}"
    return _measured(index, len(apart), "steps that differ", note)


CHECKS: Mapping[str, Callable[[int], DeviceMeasurement]] = {
    "gpu_gemm": _gemm,
    "gpu_memory_bandwidth": _memory,
    "gpu_pcie_h2d": _to_device,
    "gpu_pcie_d2h": _from_device,
    "gpu_sdc": _corruption,
    "gpu_training": _training,
    "gpu_repeat": _repeat,
}


def name_of(index: int) -> str:
    """Return the PCI address of a GPU, as the node agent names it."""
    cuda: Any = torch.cuda  # it has no types for this
    found = cuda.get_device_properties(index)
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def _measured(index: int, value: float, unit: str, note: str) -> DeviceMeasurement:
    """Limits depend on the model of the GPU, so the note begins with it."""
    return DeviceMeasurement(name_of(index), value, unit, f"{torch.cuda.get_device_name(index)}: {note}")


def _copy_bytes(wanted: int) -> int:
    """Return at most an eighth of what is free: others may use the GPU."""
    free, _ = torch.cuda.mem_get_info()
    return min(wanted, free // 8 & ~0xFFF)


def _seconds(run: Callable[[], object], repeats: int) -> float:
    """Return the time of so many runs on the device, after two runs that are not timed."""
    for _ in range(2):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
