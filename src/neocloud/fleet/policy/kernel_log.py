"""Records of the kernel log, and the faults in them; `kernel_log_line` reads them from lines. Pure.

Lines are hostile: tenants choose names of processes, which the kernel and the NVIDIA driver print, and any
program may write to the journal. So a line counts only as the kernel's own, a fault only at the beginning of
a message, and everything is bounded.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from neocloud.fleet.policy.policy import CodeKind

LONGEST_LINE = 4096
LONGEST_TEXT = 512
"""Longest line that is kept as evidence."""
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ADDRESS = r"(?P<address>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
_LED_BY_PROCESS = re.compile(
    r".{0,16}(?:\[\d{1,10}\]: |\[\d{1,10}\] |\(\d{1,10}\): | invoked oom-killer|: page allocation|: vmalloc)"
)
"""Messages that begin with the name of a process, which its owner chose: up to 15 characters of anything."""


@dataclass(frozen=True)
class KernelMessage:
    """One message of the kernel."""

    message: str
    time_s: float | None = None
    """Seconds since the boot or of a clock, whichever the line has; only differences say something."""
    sequence: int | None = None
    """Sequence of /dev/kmsg."""


@dataclass(frozen=True)
class KernelFinding:
    """A fault that the kernel reported."""

    kind: CodeKind
    code: str
    device: str = ""
    """PCI address, disk, memory controller, processor or server."""
    detail: str = ""
    """The detail beside the code in the line: "fatal", or the step that XID 154 names."""
    part: str = ""
    """The part of the GPU for XID 13."""
    time_s: float | None = None
    text: str = ""
    """The message, with control characters escaped and a bounded length."""
    sequence: int | None = None
    """Sequence of the record in /dev/kmsg: with the boot, it names the evidence."""
    is_end: bool = False
    """Whether the line says that the fault is over."""


def lines_of(stream: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file, each cut to what is read of it, whatever their lengths and bytes."""
    while chunk := stream.readline(LONGEST_LINE):
        yield chunk.decode(errors="replace")
        while not chunk.endswith(b"\n") and (chunk := stream.readline(1 << 16)):
            pass


def finding_of(record: KernelMessage) -> KernelFinding | None:
    """Return the fault that a message reports, or None."""
    message = record.message[:LONGEST_LINE]
    if _LED_BY_PROCESS.match(message):
        return None
    found = _xid(message) or _sxid(message) or _named(message) or _unread(message)
    if found is None:
        return None
    kind, code, device, detail, part, is_end = found
    return KernelFinding(
        kind, code, device, detail, part, record.time_s, visible(message), record.sequence, is_end
    )


def visible(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text with control characters escaped, and no longer than `longest`."""
    escaped = _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text[:longest])
    return escaped[:longest].encode(errors="replace").decode()


UNREADABLE = "unreadable"
"""In place of a code or detail that is missing where it should be: no row has it, so it is unknown."""
_Found = tuple[CodeKind, str, str, str, str, bool]

_XID = re.compile(rf"NVRM: Xid \((?:PCI:)?{_ADDRESS}\): (?P<code>\d{{1,6}})(?![\d.])(?P<rest>.*)")
_OFF_BUS = re.compile(rf"NVRM: GPU (?:at PCI:)?{_ADDRESS}: GPU has fallen off the bus")
_NVLINK = re.compile(r", [A-Z0-9_]{1,32}(?:/[A-Z0-9_]{1,32})? +(Nonfatal|Fatal) +XC\d i\d+ Link -?\d+ \(0x")
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x\w{1,8} \([^()]{0,40}\) to 0x\w{1,8} \(([^()]{1,40})\)"
)
_PART = re.compile(r"\(GPC (\d{1,3}), TPC (\d{1,3})(?:, SM \d{1,3})?\)")
_SXID = re.compile(
    rf"nvidia-nvswitch\d{{1,3}}: SXid \(PCI:{_ADDRESS}\): (?P<code>\d{{1,6}}), (?P<word>Fatal|Non-fatal)?"
)
_SXID_BEGIN = re.compile(r"nvidia-nvswitch\d{1,3}: SXid ")


def _xid(message: str) -> _Found | None:
    if match := _OFF_BUS.match(message):
        return CodeKind.XID, "79", _pci(match), "", "", False
    match = _XID.match(message)
    if match is None:
        return (CodeKind.XID, UNREADABLE, "", "", "", False) if message.startswith("NVRM: Xid ") else None
    code, rest = str(int(match["code"])), match["rest"]
    detail = part = ""
    # Of each, the last counts: the name of a process, which could hold such words too, comes before.
    if code == "154":
        words = _RECOVERY.findall(rest)
        detail = words[-1].lower() if words else UNREADABLE
    elif words := _NVLINK.findall(rest):
        detail = words[-1].lower()
    elif code == "13" and (parts := _PART.findall(rest)):
        part = "GPC {}, TPC {}".format(*parts[-1])
    return CodeKind.XID, code, _pci(match), detail, part, False


def _sxid(message: str) -> _Found | None:
    match = _SXID.match(message)
    if match is None:
        is_one = _SXID_BEGIN.match(message) is not None
        return (CodeKind.SXID, UNREADABLE, "", "", "", False) if is_one else None
    detail = (match["word"] or "").lower().replace("-", "")
    return CodeKind.SXID, str(int(match["code"])), _pci(match), detail, "", False


def _pci(match: re.Match[str]) -> str:
    """Return 0000:18:00.0 for any way to write the address of a GPU or switch, which are functions 0."""
    domain, bus, device = match["address"].lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{device}.0"


_NAMES_FAULT = re.compile(r"(?<![A-Za-z])S?X(?:id|ID)(?![A-Za-z])|(?i:fallen off the bus)")
_NAMES_PROCESSES = re.compile(r"audit: |CPU: \d{1,5} (?:UID|PID): |task:|process '")
"""Messages that have names of processes in them, and are no fault of a GPU."""


def names_fault(text: str) -> bool:
    """Return whether the words for a fault of a GPU or switch stand in a text, whatever else it says."""
    return _NAMES_FAULT.search(text[:LONGEST_LINE]) is not None


def _unread(message: str) -> _Found | None:
    """A message in words that are not known may be the one that matters, so it is an unknown fault."""
    if not names_fault(message) or _NAMES_PROCESSES.match(message) or _OFF_BUS_LATER.match(message):
        return None
    return CodeKind.SXID if "SXid" in message else CodeKind.XID, UNREADABLE, "", "", "", False


_DEVICE = r"(?P<device>[\w./:-]{1,64})"
_MLX5 = rf"mlx5_(?:core(?: {_ADDRESS})?|\w{{1,40}}:\d{{1,6}}:)"
_HARDWARE_ERROR = r"(?:mce: |core: )?(?:\{\d{1,6}\})?\[Hardware Error\]: +"
NAMED: Sequence[tuple[str, re.Pattern[str]]] = [
    (name, re.compile(pattern))
    for name, pattern in (
        ("kernel_panic", r"Kernel panic - not syncing"),
        ("soft_lockup", r"(?:watchdog: )?BUG: soft lockup - CPU#(?P<cpu>\d{1,5}) stuck for \d{1,6}s"),
        (
            "hung_task",
            r"INFO: task (?!(?:[\w-]{1,12}/)?loop\d).{1,64}:\d{1,10} blocked for more than \d{1,6} seconds",
        ),
        (
            "oom_kill",
            r"(?:Memory cgroup out of memory|Out of memory(?: \(.{1,40}\))?): Killed process \d{1,10}",
        ),
        (
            "filesystem_read_only",
            r"(?:EXT[234]-fs|XFS|BTRFS|F2FS-fs)\b[^(]{0,20}"
            r"(?:\((?:device )?(?P<device>[\w./-]{1,64})[^)]{0,40}\))?:?.{0,80}"
            r"(?:Remounting filesystem read-only|forced readonly|Filesystem has been shut down)",
        ),
        ("superblock_write_error", rf"EXT[234]-fs \({_DEVICE}\): I/O error while writing superblock"),
        ("raid_failed", rf"md/raid[^:]{{0,40}}: Disk failure on {_DEVICE}[ ,]"),
        ("nvme_disabled", r"nvme (?P<device>nvme\d{1,5}): (?:Disabling device after|Removing after probe)"),
        (
            "nvme_timeout",
            r"nvme (?P<device>nvme\d{1,5}): I/O .{1,120} timeout, (?:reset|aborting|disable controller)",
        ),
        ("nvme_no_path", r"block (?P<device>nvme\w{1,20}): no (?:available|usable) path - failing I/O"),
        (
            "io_error",
            r"(?:Buffer I/O error on dev(?:ice)? |(?:blk_update_request: |print_req_error: )?"
            r"(?:I/O|critical medium|critical target) error, dev )(?!fd|sr)(?P<device>[\w-]{1,32}),",
        ),
        ("nfs_not_responding", r"nfs: server (?P<device>\S{1,255}) (?:not responding|(?P<end>OK))\b"),
        ("memory_uncorrected", r"EDAC (?P<device>MC\d{1,3}): \d{1,9} UE \w.{0,200} on "),
        ("memory_corrected", r"EDAC (?P<device>MC\d{1,3}): \d{1,9} CE \w.{0,200} on "),
        (
            "machine_check_uncorrected",
            _HARDWARE_ERROR + r"(?:event severity: (?:fatal|recoverable)"
            r"|CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank \d{1,3}: "
            r"[2367abef][0-9a-f]{15}"
            r"|CPU:\d{1,5} \([0-9a-f:]{1,16}\) MC\d{1,3}_STATUS\[[^|\]]{1,8}\|UE\|)",
        ),  # bit 61 of the bank's status is that of an uncorrected error
        (
            "machine_check",
            _HARDWARE_ERROR + r"(?:Machine check events logged|event severity: corrected"
            r"|CPU (?P<cpu>\d{1,5}): Machine Check|CPU:\d{1,5} \([0-9a-f:]{1,16}\) MC\d{1,3}_STATUS\[)",
        ),
        *(
            (name, rf"[\w-]{{1,32}} {_ADDRESS}: (?:AER: )?PCIe Bus Error: severity={severity}")
            for name, severity in (
                ("pcie_fatal", r"Uncorrect(?:ed|able) \(Fatal\)"),
                ("pcie_uncorrected", r"Uncorrect(?:ed|able) \(Non-Fatal\)"),
                ("pcie_corrected", r"Correct(?:ed|able)"),
            )
        ),
        ("mlx5_command_timeout", _MLX5 + r".{0,200}timeout\. Will cause a leak of a command resource"),
        ("mlx5_health", _MLX5 + r".{0,120}device's health compromised.{0,20}reached miss count"),
        ("mlx5_unrecoverable", rf"mlx5_core {_ADDRESS}.{{0,120}}unrecoverable hardware error"),
        (
            "mlx5_access_reg",
            rf"(?:mlx5_core {_ADDRESS}[^:]{{0,40}}: )?" r"mlx5_cmd_out_err:\d.{0,80}ACCESS_REG.{0,120}failed",
        ),
        ("mlx5_temperature", _MLX5 + r".{0,80}Port module event.{0,80}High Temperature"),
        ("mlx5_unplugged", _MLX5 + r".{0,80}Port module event.{0,80}Cable unplugged"),
        ("mlx5_power", _MLX5 + r".{0,80}Detected insufficient power on the PCIe slot"),
        (
            "mlx5_tx_timeout",
            rf"(?:NETDEV WATCHDOG: \S{{1,32}} \(mlx5_core\): transmit queue|mlx5_core {_ADDRESS}.{{0,80}}"
            r"(?:TX timeout detected|NETDEV WATCHDOG.{0,40}transmit queue))",
        ),
        ("mlx5_rx_timeout", rf"mlx5_core {_ADDRESS}.{{0,80}}RX timeout on channel"),
    )
]
"""Name in the policy, and the beginning of a message. The first that fits counts."""
_LOOP = re.compile(r"loop\d")
"""Beginning of the names of devices that are files, and of those on them. A tenant whose filesystem is one
can fill and damage it; where the disk below is to blame, the kernel names that one, too."""


def _named(message: str) -> _Found | None:
    for name, pattern in NAMED:
        if match := pattern.match(message):
            groups = match.groupdict()
            if _LOOP.match(groups.get("device") or ""):
                return None
            device = _pci(match) if groups.get("address") else groups.get("device") or ""
            if not device and groups.get("cpu"):
                device = f"cpu {groups['cpu']}"
            return CodeKind.KERNEL, name, visible(device, 255), "", "", bool(groups.get("end"))
    return None


_OFF_BUS_FIRST = re.compile(rf"NVRM: The NVIDIA GPU {_ADDRESS}")
_OFF_BUS_LATER = re.compile(r"NVRM: .{0,120}fallen off the bus and is not responding")
_LINES_BETWEEN = 4


def findings(records: Iterable[KernelMessage]) -> Iterator[KernelFinding]:
    """Yield the faults of successive records; a GPU off the bus may take several of them."""
    device, left = "", 0
    for record in records:
        message = record.message[:LONGEST_LINE]
        if match := _OFF_BUS_FIRST.match(message):
            device, left = _pci(match), _LINES_BETWEEN
        if _OFF_BUS_LATER.match(message):
            text = visible(message)
            yield KernelFinding(
                CodeKind.XID, "79", device, time_s=record.time_s, text=text, sequence=record.sequence
            )
            device, left = "", 0
        elif found := finding_of(record):
            yield found
        left -= 1
        device = device if left > 0 else ""
