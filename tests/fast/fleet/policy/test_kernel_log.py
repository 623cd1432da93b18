"""Faults in the kernel log: formats, every fault that the policy names, and lines that tenants can shape.

The lines have the forms that kernel and driver print; none was captured here. HEALTH-01.
"""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.kernel_log import (
    LONGEST_LINE,
    LONGEST_TEXT,
    NAMED,
    KernelFinding,
    KernelMessage,
    finding_of,
    findings,
    lines_of,
    visible,
)
from neocloud.fleet.policy.kernel_log_line import pasted, record_of
from neocloud.fleet.policy.kernel_log_summary import Summary, summary_of
from neocloud.fleet.policy.policy import CodeKind, Severity
from neocloud.fleet.policy.policy_file import default_policy

POLICY = default_policy()
XID_79 = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_154 = "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed"
NVLINK = "NETIR_LINK_EVT {} XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000)"

XIDS = {
    XID_79: ("79", "0000:18:00.0", "", ""),
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": ("14", "0000:03:00.0", "", ""),
    "NVRM: Xid (PCI:00000001:B3:00.0): 48, pid=7, name=python3, DBE": ("48", "0001:b3:00.0", "", ""),
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.": ("79", "0000:18:00.0", "", ""),
    f"NVRM: Xid (PCI:0018:01:00): 149, {NVLINK.format('Fatal')}": ("149", "0018:01:00.0", "fatal", ""),
    f"NVRM: Xid (PCI:0018:01:00): 145, pid=1, name=x, {NVLINK.format('Nonfatal')}": (
        "145", "0018:01:00.0", "nonfatal", "",
    ),
    f"{XID_154} from 0x0 (None) to 0x1 (GPU Reset Required)": (
        "154", "0008:01:00.0", "gpu reset required", "",
    ),
    "NVRM: Xid (PCI:0008:01:00): 154 (": ("154", "0008:01:00.0", "unreadable", ""),
    "NVRM: Xid (PCI:0000:b5:00): 13, pid=1, name=a, Graphics SM Warp Exception on (GPC 1, TPC 3, SM 0)": (
        "13", "0000:b5:00.0", "", "GPC 1, TPC 3",
    ),
    # The next five are of a real H200 with driver 580.159.04, on which three programs with errors ran.
    "NVRM: Xid (PCI:0000:00:06): 31, pid=749, name=bad, channel 0x0000000a, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x0_00000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_WRITE": ("31", "0000:00:06.0", "", ""),
    "NVRM: Xid (PCI:0000:00:06): 43, pid=794, name=bad, channel 0x0000000a": ("43", "0000:00:06.0", "", ""),
    "NVRM: Xid (PCI:0000:00:06): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned "
    "Address": ("13", "0000:00:06.0", "", "GPC 1, TPC 4"),
    "NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x519730=0x500000f 0x519734=0x0 "
    "0x519728=0x1f81fb60 0x51972c=0x1174": ("13", "0000:00:06.0", "", ""),
    "NVRM: Xid (PCI:0000:00:06): 13, pid=835, name=bad, Graphics Exception: channel 0x0000000a, Class "
    "0000cbc0, Offset 00000510, Data 0017e2ac": ("13", "0000:00:06.0", "", ""),
    "NVRM: Xid (PCI:0000:b5:00): 1234567, more digits than codes have": ("unreadable", "", "", ""),
}  # fmt: skip

NAMED_LINES = {
    "Kernel panic - not syncing: Fatal exception": ("kernel_panic", ""),
    "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]": ("soft_lockup", "cpu 18"),
    "INFO: task jfsmount:136986 blocked for more than 120 seconds.": ("hung_task", ""),
    "Out of memory: Killed process 123 (python3) total-vm:1kB, anon-rss:1kB": ("oom_kill", ""),
    "Memory cgroup out of memory: Killed process 9 (a) total-vm:1kB": ("oom_kill", ""),
    "EXT4-fs (md0): Remounting filesystem read-only": ("filesystem_read_only", "md0"),
    "BTRFS info (device sda1: state E): forced readonly": ("filesystem_read_only", "sda1"),
    "EXT4-fs (dm-0): I/O error while writing superblock": ("superblock_write_error", "dm-0"),
    "md/raid0md0: Disk failure on nvme0n1p1 detected, failing array.": ("raid_failed", "nvme0n1p1"),
    "nvme nvme4: Disabling device after reset failure: -19": ("nvme_disabled", "nvme4"),
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller": (
        "nvme_timeout", "nvme4",
    ),
    "block nvme0n1: no available path - failing I/O": ("nvme_no_path", "nvme0n1"),
    "Buffer I/O error on dev dm-0, logical block 1308098575, lost async page write": ("io_error", "dm-0"),
    "I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x0": ("io_error", "nvme0n1"),
    "nfs: server 10.1.2.3 not responding, timed out": ("nfs_not_responding", "10.1.2.3"),
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": (
        "memory_uncorrected", "MC0",
    ),
    "EDAC MC1: 2 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": ("memory_corrected", "MC1"),
    "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 1: bc00080001010135": (
        "machine_check_uncorrected", "cpu 5",
    ),
    "mce: [Hardware Error]: CPU 5: Machine Check: 0 Bank 7: 8c00004000010092": ("machine_check", "cpu 5"),
    "{1}[Hardware Error]: event severity: fatal": ("machine_check_uncorrected", ""),
    "[Hardware Error]: CPU:0 (17:31:0) MC27_STATUS[Over|CE|-]: 0xd82000000002080b": ("machine_check", ""),
    "pcieport 0000:c0:01.1: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer": (
        "pcie_fatal", "0000:c0:01.0",
    ),
    "igb 0000:09:00.0: AER: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x": (
        "pcie_uncorrected", "0000:09:00.0",
    ),
    "pcieport 0000:00:1c.0: PCIe Bus Error: severity=Corrected, type=Physical Layer": (
        "pcie_corrected", "0000:00:1c.0",
    ),
    "mlx5_core 0000:5c:00.0: f:1: HCA(0x104) timeout. Will cause a leak of a command resource": (
        "mlx5_command_timeout", "0000:5c:00.0",
    ),
    "mlx5_core 0000:5c:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count": (
        "mlx5_health", "0000:5c:00.0",
    ),
    "mlx5_core 0000:5c:00.0: print_health_info: synd 0x1: unrecoverable hardware error": (
        "mlx5_unrecoverable", "0000:5c:00.0",
    ),
    "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad": (
        "mlx5_access_reg", "",
    ),
    "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, High Temperature": (
        "mlx5_temperature", "",
    ),
    "mlx5_core 0000:5c:00.0: Port module event: Cable unplugged": ("mlx5_unplugged", "0000:5c:00.0"),
    "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 2): Detected insufficient power on the PCIe slot": (
        "mlx5_power", "0000:5c:00.0",
    ),
    "mlx5_core 0000:5c:00.0 eth0: TX timeout detected": ("mlx5_tx_timeout", "0000:5c:00.0"),
    "mlx5_core 0000:5c:00.0 eth0: RX timeout on channel: 3": ("mlx5_rx_timeout", "0000:5c:00.0"),
}  # fmt: skip


def found(message: str) -> KernelFinding | None:
    return finding_of(KernelMessage(message, 1.0))


@pytest.mark.parametrize("message", XIDS)
def test_xids(message: str) -> None:
    finding = found(message)
    assert finding is not None and finding.kind is CodeKind.XID
    assert (finding.code, finding.device, finding.detail, finding.part) == XIDS[message]


@pytest.mark.parametrize("message", NAMED_LINES)
def test_faults_of_the_kernel(message: str) -> None:
    finding = found(message)
    assert finding is not None and finding.kind is CodeKind.KERNEL
    assert (finding.code, finding.device) == NAMED_LINES[message]


def test_every_fault_of_the_kernel_has_a_line_here_and_a_row_in_the_policy() -> None:
    names = {name for name, _ in NAMED}
    assert names == {name for name, _ in NAMED_LINES.values()}
    assert names == {code for rule in POLICY.rules if rule.kind is CodeKind.KERNEL for code in rule.codes}


def test_sxids_carry_the_word_of_the_line() -> None:
    line = "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, {}Link 32 egress non-posted PRIV error (First)"
    for word, detail in (("Non-fatal, ", "nonfatal"), ("Fatal, ", "fatal"), ("", "")):
        finding = found(line.format(word))
        assert finding is not None
        assert (finding.kind, finding.code, finding.device, finding.detail) == (
            CodeKind.SXID, "12028", "0000:05:00.0", detail,
        )  # fmt: skip


def test_a_gpu_off_the_bus_may_take_several_lines() -> None:
    lines = (
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:2330) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    assert [(each.code, each.device) for each in findings(map(KernelMessage, lines))] == [
        ("79", "0000:18:00.0")
    ]


@pytest.mark.parametrize(
    ("line", "time_s"),
    [
        (f"3,1201,5123456789,-;{XID_79}", 5123.456789),
        (f"[ 5123.456789] {XID_79}", 5123.456789),
        (f"<3>[ 5123.456789] {XID_79}", 5123.456789),
        (f"kern  :err   : [ 5123.456789] {XID_79}", 5123.456789),
        (f"[Sun Jan  5 18:28:55 2025] {XID_79}", 1736101735.0),
        (f"2025-01-05T18:28:55+00:00 node1 kernel: {XID_79}", 1736101735.0),
        (f"Jan  5 18:28:55 node1 kernel: {XID_79}", 947096935.0),
        (f"Jan  5 18:28:55 node1 kernel: [ 5123.456789] {XID_79}", 947096935.0),
    ],
)
def test_formats_of_kernel_logs(line: str, time_s: float) -> None:
    record = record_of(line + "\n")
    assert record is not None
    assert (record.message, record.time_s) == (XID_79, time_s)


ATTACKS = {
    "a program's line in the journal": f"Jan  5 18:28:55 node1 python3[77]: {XID_79}",
    "a program that calls itself kernel, with its number": f"Jan  5 18:28:55 node1 kernel[77]: {XID_79}",
    "a program that writes to /dev/kmsg": f"12,1201,5123456789,-;{XID_79}",
    "the second line of a program's message": f"                 {XID_79}",
    "a property of a record": " SUBSYSTEM=pci",
    "no line of any format": XID_79,
}


@pytest.mark.parametrize("line", ATTACKS.values(), ids=ATTACKS)
def test_lines_that_are_not_the_kernels_own_do_not_count(line: str) -> None:
    assert record_of(line) is None


@pytest.mark.parametrize(
    "name", ["EDAC MC0: 1 UE ", "NVRM: Xid (PCI:", "Kernel panic - ", "nfs: server x n", "I/O error, dev "]
)
@pytest.mark.parametrize(
    "rest",
    [
        "[4242]: segfault at 0 ip 0000 sp 0000 error 4 in not syncing on x, not responding[400000+1000]",
        " invoked oom-killer: gfp_mask=0x0 on x",
        ": page allocation failure: order:4, mode:0x0 on x",
    ],
)
def test_a_process_cannot_forge_a_fault_by_its_name(name: str, rest: str) -> None:
    assert found(name + rest) is None


def test_a_process_cannot_hide_or_soften_a_fault_by_its_name() -> None:
    name, words = NVLINK.format("Nonfatal"), NVLINK.format("Fatal")
    soft = found(f"NVRM: Xid (PCI:0018:01:00): 149, pid=1, name=, {name}, {words}")
    assert soft is not None and soft.detail == "fatal"
    words = "GPU recovery action changed from 0x1 (x) to"
    step = found(
        f"NVRM: Xid (PCI:0000:18:00): 154, name={words} 0x0 (None), {words} 0x2 (Node Reboot Required)"
    )
    assert step is not None and step.detail == "node reboot required"
    other = found(f"NVRM: Xid (PCI:0000:18:00): 79, pid=1, name={XID_79.replace('18', '99')}, off")
    assert other is not None and other.device == "0000:18:00.0"


LOOPS = (
    "EXT4-fs (loop3): Remounting filesystem read-only",
    "EXT4-fs error (device loop3): ext4_journal_check_start:83: Remounting filesystem read-only",
    "XFS (loop0p1): Filesystem has been shut down due to log error (0x2).",
    "BTRFS: error (device loop12: state EA) in btrfs_commit: errno=-5 IO failure; forced readonly",
    "EXT4-fs (loop3): I/O error while writing superblock",
    "Buffer I/O error on dev loop3, logical block 0, lost async page write",
    "blk_update_request: I/O error, dev loop3, sector 8",
    "I/O error, dev loop0, sector 8 op 0x1:(WRITE)",
    "critical target error, dev loop0, sector 8",
    "INFO: task jbd2/loop3-8:4242 blocked for more than 120 seconds.",
    "INFO: task loop3:4242 blocked for more than 120 seconds.",
)


@pytest.mark.parametrize("line", LOOPS)
def test_what_happens_in_a_tenants_loop_device_is_no_fault_of_the_node(line: str) -> None:
    assert found(line) is None
    disk = line.replace("loop", "sd")
    assert found(disk) is not None, "the same line of a disk is a fault"


def test_a_loop_device_in_a_name_hides_no_fault_of_a_disk() -> None:
    """A tenant chooses names of processes and labels, which come after the device."""
    for line in (
        "EXT4-fs (sda1): Remounting filesystem read-only loop0",
        "EXT4-fs error (device sda1): ext4_lookup:1: comm loop0: Remounting filesystem read-only",
        "I/O error, dev sda, sector 8 loop0",
    ):
        fault = found(line)
        assert fault is not None and fault.device.startswith("sda")


NAMES = st.text(alphabet=st.characters(exclude_characters="\n\r"), max_size=15)


@given(NAMES)
def test_any_name_of_a_process_leaves_the_fault_as_it_is(name: str) -> None:
    xid = found(f"NVRM: Xid (PCI:0000:18:00): 13, pid=1, name={name}, Graphics Exception: ChID 000c")
    assert xid is not None and (xid.kind, xid.code, xid.device) == (CodeKind.XID, "13", "0000:18:00.0")
    lockup = found(f"watchdog: BUG: soft lockup - CPU#1 stuck for 22s! [{name}:9]")
    assert lockup is not None and lockup.code == "soft_lockup"
    assert found(f"{name}[4242]: segfault at 0 ip 0 sp 0 error 4 in a on b[400000+1000]") is None


STARTS = [line[: len(line) // 2] for line in (*NAMED_LINES, *XIDS)]


@given(st.text(max_size=200) | st.builds(str.__add__, st.sampled_from(STARTS), st.text(max_size=100)))
def test_any_line_is_read_or_left_without_an_error(text: str) -> None:
    for line in (text, f"3,1,1,-;{text}", f"[    1.0] {text}", f"Feb 30 25:61:61 node kernel: {text}"):
        read = (record_of(line), pasted(line).record)
        for finding in findings([record for record in read if record]):
            shown = finding.text + finding.device + finding.detail
            assert len(finding.text) <= LONGEST_TEXT and len(shown) <= LONGEST_TEXT + 400
            assert visible(shown, len(shown)) == shown, "no control characters"
            shown.encode()


@given(st.binary(max_size=300))
def test_any_bytes_are_split_into_bounded_lines(data: bytes) -> None:
    lines = list(lines_of(io.BytesIO(data + b"x" * 3 * LONGEST_LINE + b"\nlast\n")))
    assert lines[-1] == "last\n"
    assert all(len(line) <= LONGEST_LINE for line in lines)
    assert len(lines) == data.count(b"\n") + 2


@pytest.mark.parametrize(
    "filler", ["a", " ", "(", "0", "mlx5_core ", ", A", "timeout", "EXT4-fs (", "[", "a:", "I/O "]
)
def test_long_lines_take_no_time(filler: str) -> None:
    """The test ends: no pattern tries more than a bounded number of ways."""
    for start in ("", "Sun ", "2026-11-15T04:48:56Z ", *NAMED_LINES, *XIDS):
        line = (start[:40] + filler * LONGEST_LINE)[:LONGEST_LINE]
        found(line)
        pasted(line)


def summary(*lines: str, **of: str) -> Summary:
    records = [record for line in lines if (record := record_of(line)) is not None]
    return summary_of(records, POLICY, gpu=of.get("gpu", ""))


def test_lines_of_a_burst_are_one_fault() -> None:
    """The driver prints XID 79 and says the same in plain words: this is no second fault that ends in RMA."""
    once = summary(f"[ 100.0] {XID_79}", "[ 101.0] NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.")
    assert [(each.lines, len(each.times), each.action) for each in once.faults] == [(2, 1, Action.REBOOT)]
    twice = summary(f"[ 100.0] {XID_79}", f"[ 9000.0] {XID_79}")
    assert twice.faults[0].action is Action.RMA and "2 times" in twice.faults[0].because[0]
    others = summary(f"[ 100.0] {XID_79}", f"[ 9000.0] {XID_79.replace('18', '19')}")
    assert {each.action for each in others.faults} == {Action.REBOOT}, "two GPUs"


def test_a_flood_of_different_faults_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("neocloud.fleet.policy.kernel_log_summary.MOST_FAULTS", 2)
    monkeypatch.setattr("neocloud.fleet.policy.kernel_log_summary.MOST_TIMES", 3)
    lines = [f"[ {code}000.0] NVRM: Xid (PCI:0000:18:00): {code}, x" for code in range(900, 905)]
    again = [f"[ {at}000.0] NVRM: Xid (PCI:0000:18:00): 900, x" for at in range(1000, 1010)]
    flood = summary(*lines, *again)
    assert len(flood.faults) == 2 and flood.not_told_apart == 3
    first = next(each for each in flood.faults if each.code == "900")
    assert first.lines == 11 and first.times == [1007000.0, 1008000.0, 1009000.0]


def test_page_faults_of_one_gpu_become_its_fault_and_of_several_the_applications() -> None:
    line = "[ {}] NVRM: Xid (PCI:0000:{}:00): 31, pid=1, name=python3, MMU Fault"
    same = summary(line.format("100.0", "18"), line.format("5000.0", "18"))
    spread = summary(line.format("100.0", "18"), line.format("5000.0", "19"))
    late = summary(line.format("100.0", "18"), line.format("99000.0", "18"))
    assert same.faults[0].action is Action.TRIAGE
    assert {each.action for each in (*spread.faults, *late.faults)} == {Action.RESTART_APP}


def test_fatal_faults_of_one_gpu_end_in_triage_whatever_their_codes() -> None:
    codes = ("48", "95", "119", "62", "64")
    lines = [f"[ {at}000.0] NVRM: Xid (PCI:0000:18:00): {code}, x" for at, code in enumerate(codes, 1)]
    assert {each.action for each in summary(*lines).faults} == {Action.TRIAGE}
    assert {each.action for each in summary(*lines[1:]).faults} == {Action.RESET_GPU}


def test_a_server_that_does_not_answer_for_a_minute() -> None:
    down, later = "[ 100.0] nfs: server a not responding, still trying", "[ {}] usb 1-1: something"
    assert summary(down, later.format("130.0")).faults[0].severity is Severity.WARNING
    lasting = summary(down, later.format("170.0")).faults[0]
    assert (lasting.severity, lasting.action) == (Severity.FATAL, Action.TRIAGE)
    over = summary(down, "[ 105.0] nfs: server a OK", later.format("170.0"))
    assert over.faults[0].severity is Severity.WARNING


def test_network_adapters_that_complain_three_times_an_hour() -> None:
    line = "[ {}] mlx5_core 0000:5c:00.0 eth0: TX timeout detected"
    assert summary(line.format("0.5"), line.format("1000.0")).faults[0].action is Action.NONE
    thrice = summary(*(line.format(at) for at in ("0.5", "1000.0", "2000.0"))).faults[0]
    assert (thrice.severity, thrice.action) == (Severity.WARNING, Action.TRIAGE)


def test_the_gravest_fault_comes_first_and_unknown_ones_are_shown() -> None:
    mixed = summary(
        "[ 1.0] NVRM: Xid (PCI:0000:18:00): 999, new", f"[ 2.0] {XID_79}", "[ 3.0] EDAC MC0: 1 CE a on b"
    )
    assert [each.severity for each in mixed.faults] == [Severity.FATAL, Severity.UNKNOWN, Severity.WARNING]
    assert mixed.records == 3
