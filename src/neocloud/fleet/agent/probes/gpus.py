"""GPUs, by NVML. The library is loaded only in the process of this probe, which may hang in the driver.

Its Python bindings are imported by the agent once: they load no library, and an import in each probe took
half of the agent's processor time.
"""

from collections.abc import Callable
from typing import Any

from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.probe_result import NotRun, ProbeResult
from neocloud.fleet.agent.probes.links import DISPLAY, NVIDIA, PCI_DEVICES
from neocloud.fleet.nodes.parts import HostPart

try:
    import pynvml as _bindings  # pyright: ignore[reportMissingTypeStubs]
except ImportError:
    _bindings = None
CHECKS = (
    *("gpu_lost", "thermal_margin", "hw_slowdown", "ecc_uncorrected", "ecc_corrected", "sram_uncorrected"),
    *("sram_corrected", "row_remap_pending", "row_remap_failed", "retired_pages", "nvlink_down"),
    *("pcie_width", "gpu_pcie_speed", "gpu_stalled_s"),
)
PASSED_ON = "vfio-pci"
"""Driver of GPUs that a virtual machine has: NVML of the host does not know them."""
MOST_GPUS = 64
MOST_NVLINKS = 36
"""NVML_NVLINK_MAX_LINKS of the drivers so far."""
SIMULATED = "neocloud_simulated"
"""A symbol that only the stand-in for the library has."""
HARDWARE_SLOWDOWN = 0x08 | 0x40 | 0x80
"""Bits of the reasons: slow-down, thermal slow-down and power brake, all by hardware."""
BUSY_PERCENT, STALLED_WATT_SHARE = 95, 0.35
"""An H100 that only waits says 100 % and takes 0.18 to 0.21 of its power limit; a GEMM takes 0.99."""


def gpus(tree: Tree, expected: Expected) -> ProbeResult:
    return _gpus(_on_bus(tree), expected)


def gpus_of_pod(tree: Tree, expected: Expected) -> ProbeResult:
    """The bus shows GPUs of other containers, too; NVML only this one's."""
    return _gpus([], expected)


def parts(tree: Tree) -> ProbeResult:
    """Return the GPUs with serial number and firmware; those without a number by their UUID."""
    found = ProbeResult()
    nvml = load(found, [], Expected())
    if nvml is None:
        why = next((each.why for each in found.not_run), "NVML does not answer")
        return ProbeResult(not_run=[NotRun("gpus", why)])
    answer = ProbeResult(simulated=simulated_by(nvml))
    for index in range(min(MOST_GPUS, nvml.nvmlDeviceGetCount())):
        try:
            answer.parts.append(_part(nvml, nvml.nvmlDeviceGetHandleByIndex(index)))
        except nvml.NVMLError as error:
            answer.leave_out(f"GPU {index} does not answer: {error}", f"gpu {index}")
    return answer


def _part(nvml: Any, handle: object) -> HostPart:
    def ask(what: str) -> str:
        try:
            return _text(getattr(nvml, f"nvmlDeviceGet{what}")(handle))
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                return ""
            raise

    slot = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]
    firmware = " ".join(each for each in (ask("VbiosVersion"), ask("InforomImageVersion")) if each)
    return HostPart("gpu", slot, ask("Name"), ask("Serial") or ask("UUID"), firmware)


def _gpus(on_bus: list[str], expected: Expected) -> ProbeResult:
    found = ProbeResult()
    nvml = load(found, on_bus, expected)
    if nvml is None:
        return found
    found.simulated = simulated_by(nvml)
    try:
        count = min(MOST_GPUS, nvml.nvmlDeviceGetCount())
    except nvml.NVMLError as error:
        found.fail_to_read("gpu_lost", "", f"NVML does not count the GPUs: {error}")
        return found
    answering = sum(_gpu(nvml, index, expected, found) for index in range(count))
    _count(found, answering, max(count, len(on_bus)), expected)
    read = {each.check for each in (*found.readings, *found.unreadable)}
    if answering:
        found.leave_out("The GPUs do not have it, or their driver does not tell", *(
            name for name in CHECKS if name not in read
        ))  # fmt: skip
    elif not expected.gpus and not read - {"gpu_missing"}:
        found.leave_out("There is no GPU here", *CHECKS)
    return found


def _on_bus(tree: Tree) -> list[str]:
    return [
        address
        for address in tree.names(PCI_DEVICES)
        if tree.optional(f"{PCI_DEVICES}/{address}/vendor") == NVIDIA
        and (tree.optional(f"{PCI_DEVICES}/{address}/class") or "").startswith(DISPLAY)
        and tree.link_name(f"{PCI_DEVICES}/{address}/driver") != PASSED_ON
    ]


def load(found: ProbeResult, on_bus: list[str], expected: Expected) -> Any:
    """Return the started library, or None with the reason in `found`."""
    if _bindings is None:
        _without(found, on_bus, expected, "the Python package nvidia-ml-py is not there")
        return None
    nvml: Any = _bindings  # it has no types
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        is_absent = error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND
        _without(
            found, on_bus, expected, "there is no NVML" if is_absent else f"NVML does not start: {error}"
        )
        return None
    return nvml


def simulated_by(nvml: Any) -> str:
    """Return what is not real of the started library's answers; "" where they are real."""
    return "a stand-in for NVML answers for the GPUs" if hasattr(nvml.nvmlLib, SIMULATED) else ""


def name_of(nvml: Any, handle: object) -> str:
    """Return the model; "" where the GPU does not tell it."""
    try:
        return _text(nvml.nvmlDeviceGetName(handle))
    except nvml.NVMLError:
        return ""


def _without(found: ProbeResult, on_bus: list[str], expected: Expected, why: str) -> None:
    if on_bus:
        found.fail_to_read("gpu_lost", "", f"{len(on_bus)} GPUs are on the bus, and {why}")
    elif not expected.gpus:
        found.leave_out(f"There is no GPU here, and {why}", "gpu_missing", *CHECKS)
    if expected.gpus and not on_bus:
        found.read("gpu_missing", "", expected.gpus, f"0 of {expected.gpus} GPUs; {why}")


def _count(found: ProbeResult, answering: int, present: int, expected: Expected) -> None:
    wanted = expected.gpus if expected.gpus is not None else present
    if not wanted:
        found.leave_out("There is no GPU here", "gpu_missing")
        return
    told = "expected" if expected.gpus is not None else "on the bus or known to NVML"
    found.read("gpu_missing", "", max(0, wanted - answering), f"{answering} answer of {wanted} {told}")


def _gpu(nvml: Any, index: int, expected: Expected, found: ProbeResult) -> bool:
    """Read one GPU. Return whether it answers."""
    name = f"GPU {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = _text(nvml.nvmlDeviceGetPciInfo(handle).busId).lower()[-12:]  # a domain of four digits
        model = _text(nvml.nvmlDeviceGetName(handle))
        _Gpu(nvml, handle, name, model, found).read_all(expected)
        found.read("gpu_lost", name, 0)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND):
            found.read("gpu_lost", name, 1, str(error))
        else:
            found.fail_to_read("gpu_lost", name, error)
        return False
    return True


class _Gpu:
    """Reads of one GPU. Readings that a board or driver does not have are left out; errors of others are
    kept.
    """

    def __init__(self, nvml: Any, handle: object, name: str, model: str, found: ProbeResult) -> None:
        self._nvml, self._handle, self._name, self._model, self._found = nvml, handle, name, model, found

    def read_all(self, expected: Expected) -> None:
        self._read("thermal_margin", self._margin)
        self._read("hw_slowdown", self._slowdown)
        for check, kind in (("ecc_uncorrected", 1), ("ecc_corrected", 0)):
            self._read(check, lambda kind=kind: (self._ask("TotalEccErrors", kind, 0), ""))
            self._read(
                f"sram_{check[4:]}", lambda kind=kind: (self._ask("MemoryErrorCounter", kind, 0, 7), "")
            )
        for check, place in (("row_remap_pending", 2), ("row_remap_failed", 3)):
            self._read(check, lambda place=place: (self._ask("RemappedRows")[place], ""))
        self._read("retired_pages", self._retired)
        self._read("nvlink_down", lambda: self._nvlinks(expected))
        self._read("pcie_width", lambda: (self._ask("CurrPcieLinkWidth"), ""))
        self._read("gpu_pcie_speed", self._pcie_speed)
        self._read("gpu_stalled_s", self._stalled)

    def _ask(self, what: str, *arguments: object) -> Any:
        return getattr(self._nvml, f"nvmlDeviceGet{what}")(self._handle, *arguments)

    def _read(self, check: str, ask: Callable[[], tuple[float | None, str]]) -> None:
        nvml = self._nvml
        try:
            value, note = ask()
        except nvml.NVMLError as error:
            if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                return
            if error.value in (nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND):
                raise
            self._found.fail_to_read(check, self._name, error)
            return
        if value is not None:
            self._found.read(check, self._name, float(value), note, self._model)

    def _margin(self) -> tuple[float | None, str]:
        nvml = self._nvml
        now = self._ask("Temperature", nvml.NVML_TEMPERATURE_GPU)
        try:
            return self._ask("MarginTemperature"), f"{now} °C"
        except nvml.NVMLError as error:
            if error.value not in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                raise
        limit = self._ask("TemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)
        return limit - now, f"{now} °C, slows down at {limit} °C"

    def _slowdown(self) -> tuple[float | None, str]:
        reasons = self._ask("CurrentClocksEventReasons")
        clock = self._ask("ClockInfo", self._nvml.NVML_CLOCK_SM)
        return int(bool(reasons & HARDWARE_SLOWDOWN)), f"reasons 0x{reasons:x}, {clock} MHz"

    def _stalled(self) -> tuple[float | None, str]:
        """A kernel that waits for others counts as use of the GPU, and moves no data."""
        use = self._ask("UtilizationRates")
        share = self._ask("PowerUsage") / max(1, self._ask("EnforcedPowerLimit"))
        is_stalled = use.gpu >= BUSY_PERCENT and not use.memory and share < STALLED_WATT_SHARE
        return int(is_stalled), f"in use {use.gpu} %, memory {use.memory} %, {100 * share:.0f} % of its power"

    def _retired(self) -> tuple[float | None, str]:
        causes = (0, 1)  # several single-bit errors, or one double-bit error
        return sum(len(self._ask("RetiredPages", cause)) for cause in causes), ""

    def _nvlinks(self, expected: Expected) -> tuple[float | None, str]:
        nvml, states = self._nvml, list[bool]()
        for link in range(MOST_NVLINKS):
            try:
                states.append(bool(self._ask("NvLinkState", link)))
            except nvml.NVMLError as error:
                if error.value in (nvml.NVML_ERROR_INVALID_ARGUMENT, nvml.NVML_ERROR_NOT_SUPPORTED):
                    break
                raise
        if expected.nvlinks is None and not any(
            states
        ):  # a board without a bridge has links, all of them down
            return None, ""
        wanted = expected.nvlinks if expected.nvlinks is not None else len(states)
        return max(0, wanted - sum(states)), f"{sum(states)} of {wanted} up"

    def _pcie_speed(self) -> tuple[float | None, str]:
        """A GPU that does nothing may save power by a slower link, so only a busy one is judged."""
        now, most = self._ask("CurrPcieLinkGeneration"), self._ask("MaxPcieLinkGeneration")
        is_busy = self._ask("PerformanceState") == 0
        return (int(now < most) if is_busy else None), f"generation {now} of {most}"


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
