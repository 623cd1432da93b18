"""Print what NVML knows of the GPUs of this machine, as one JSON object on one line.

A program of its own, since the server can neither end a call of a driver that hangs nor wait for it:

    python nvml_report.py

`gpus` has index, name, memory, UUID, PCI address and minor number of each GPU that answers; `problems` says
in words what does not. Without NVML, or without a GPU, both are empty.
"""

import json
import sys
from collections.abc import Callable
from typing import Any, TypedDict


class Gpu(TypedDict):
    index: int
    name: str
    memory_mib: int
    uuid: str
    pci_address: str
    minor: int


class Report(TypedDict):
    gpus: list[Gpu]
    problems: list[str]


def report() -> Report:
    try:
        import pynvml  # noqa: PLC0415 - it may be missing  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        return _answer(problems=["the Python package nvidia-ml-py is not installed"])
    nvml: Any = pynvml  # it has no types
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        is_absent = error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        return _answer(problems=[] if is_absent else [f"NVML does not start: {error}"])
    gpus: list[Gpu] = []
    problems: list[str] = []
    try:
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpus.append(_gpu(nvml, index))
            except nvml.NVMLError as error:
                problems.append(f"GPU {index} does not answer: {error}")
    except nvml.NVMLError as error:
        problems.append(f"NVML does not answer: {error}")
    return _answer(gpus, problems)


def _gpu(nvml: Any, index: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return {
        "index": index,
        "name": _text(nvml.nvmlDeviceGetName(handle)),
        "memory_mib": nvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20,
        "uuid": _text(nvml.nvmlDeviceGetUUID(handle)),
        "pci_address": _text(nvml.nvmlDeviceGetPciInfo(handle).busId),
        "minor": _optional(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle)),
    }


def _optional(nvml: Any, call: Callable[[], int]) -> int:
    """Return -1 for what this driver does not tell."""
    try:
        return int(call())
    except nvml.NVMLError:
        return -1


def _text(value: str | bytes) -> str:
    """Older releases of the package return bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _answer(gpus: list[Gpu] | None = None, problems: list[str] | None = None) -> Report:
    return {"gpus": gpus or [], "problems": problems or []}


if __name__ == "__main__":
    json.dump(report(), sys.stdout)
    sys.stdout.flush()
