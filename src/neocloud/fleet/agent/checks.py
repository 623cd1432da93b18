"""The checks: how each number is judged. Limits, their sources and actions are those of the fault policy."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class How(StrEnum):
    """The quantity that is compared with the limit."""

    VALUE = "value"
    """The number itself."""
    INCREASE = "increase"
    """The growth of a counter, within the limit's time or the last hour."""
    LASTING = "lasting"
    """For how many seconds a condition has held; a number other than 0 says that it does."""
    SHARE = "share"
    """How often a condition held, as a rate over the window: each reading other than 0 is one event."""


@dataclass(frozen=True)
class Check:
    name: str
    """Name of a counter in the fault policy."""
    probe: str
    how: How = How.VALUE
    unit: str = ""
    is_doubt: bool = False
    """While the condition holds and the limit is not reached, the answer is unknown."""
    window_s: float | None = None
    """Over which a rate is measured, where it is not the limit's own time."""


HOUR = 3600.0
IB_COUNTERS: Mapping[str, str] = {
    "ib_link_downed": "counters/link_downed",
    "ib_local_link_integrity_errors": "counters/local_link_integrity_errors",
    "ib_excessive_buffer_overrun_errors": "counters/excessive_buffer_overrun_errors",
    "ib_rnr_nak_retry_err": "hw_counters/rnr_nak_retry_err",
    "ib_symbol_error": "counters/symbol_error",
    "ib_link_error_recovery": "counters/link_error_recovery",
    "ib_port_rcv_errors": "counters/port_rcv_errors",
    "ib_roce_slow_restart": "hw_counters/roce_slow_restart",
    "ib_local_ack_timeout_err": "hw_counters/local_ack_timeout_err",
    "ib_port_xmit_discards": "counters/port_xmit_discards",
}
"""Check, and the file below a port."""
CHECKS: Mapping[str, Check] = {
    each.name: each
    for each in (
        Check("gpu_missing", "gpus"),
        Check("gpu_lost", "gpus"),
        Check("thermal_margin", "gpus", unit="°C"),
        Check("hw_slowdown", "gpus", How.SHARE, window_s=600),
        Check("ecc_uncorrected", "gpus"),
        Check("ecc_corrected", "gpus"),
        Check("sram_uncorrected", "gpus"),
        Check("sram_corrected", "gpus"),
        Check("row_remap_pending", "gpus"),
        Check("row_remap_failed", "gpus"),
        Check("retired_pages", "gpus"),
        Check("nvlink_down", "gpus"),
        Check("pcie_width", "gpus", unit="lanes"),
        Check("gpu_pcie_speed", "gpus"),
        Check("gpu_stalled_s", "gpus", How.LASTING, unit="s"),
        Check("pcie_degraded", "pcie"),
        Check("ib_port_missing", "infiniband"),
        Check("ib_port_down_s", "infiniband", How.LASTING, unit="s", is_doubt=True),
        Check("ib_rate_low", "infiniband"),
        *(Check(name, "infiniband", How.INCREASE) for name in IB_COUNTERS),
        Check("carrier_changes", "ethernet", How.INCREASE),
        Check("memory_errors_uncorrected", "memory_errors"),
        Check("memory_errors_corrected", "memory_errors", How.INCREASE),
        Check("nvme_not_live", "nvme"),
        Check("nvme_missing", "nvme"),
        Check("thermal_zone", "thermal", unit="°C"),
        Check("mount_missing", "mounts"),
        Check("mount_read_only", "mounts"),
        Check("mount_silent_s", "room", How.LASTING, unit="s", is_doubt=True),
        Check("disk_used", "room", unit="%"),
        Check("disk_full", "room", unit="%"),
        Check("inodes_used", "room", unit="%"),
        Check("inodes_full", "room", unit="%"),
        Check("blocked_task_s", "tasks", How.LASTING, unit="s"),
        Check("load_per_cpu", "capacity"),
        Check("cpus_missing", "capacity"),
        Check("memory_missing", "capacity", unit="%"),
        Check("clock_offset_s", "clock", unit="s"),
        Check("slow_clocksource", "clock"),
    )
}
