"""Each check has a tree or a scenario in which it fails, one in which it passes, and one action.

All of it is simulated: a tree in the shape of a node's files, and a stand-in for NVML.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from neocloud.fleet.agent.checks import CHECKS, IB_COUNTERS
from neocloud.fleet.agent.child import Children, Job, ProbeOutcome
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.history import History
from neocloud.fleet.agent.host import HostChecks, Memory
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.judge import CheckAnswer, Judge, limit_of
from neocloud.fleet.agent.plan import PROBES
from neocloud.fleet.agent.probe_result import NotRun, Reading
from neocloud.fleet.nodes.events import CheckScope, Status
from neocloud.fleet.policy.actions import Action
from neocloud.fleet.policy.policy import CodeKind
from neocloud.fleet.policy.policy_file import default_policy
from tests import ROOT
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Node, bad
from tests.fast.fleet.agent.trees import GPUS, NVME, PORT, ZONE, bridge, device, room, write

DAY = 86400.0
OF_GPUS = [name for name, check in CHECKS.items() if check.probe == "gpus"]


class InThisProcess(Children):
    """Runs probes without processes, so that a table of cases takes seconds."""

    def run(self, jobs: list[Job], stop: Callable[[], str] | None = None) -> list[ProbeOutcome]:
        return [ProbeOutcome(job.name, job.run()) for job in jobs]


class Checked:
    """The checks of a tree, on a clock that tests set."""

    def __init__(self, root: Path, **expected: object) -> None:
        given = {**trees.EXPECTED, "mounts": ("/jail",), **expected}
        self.now = 1000.0
        self._checks = HostChecks(
            Tree(root),
            default_policy(),
            Expected(**given),  # pyright: ignore[reportArgumentType]
            Memory(trees.BOOT),
            probes=[each for each in PROBES if each.name != "gpus"],
            now=lambda: self.now,
            children=InThisProcess(),
        )

    def after(self, seconds: float) -> Mapping[str, CheckAnswer | NotRun]:
        self.now += seconds
        self._checks.run()
        return {name: said.answer for name, said in self._checks.said.items()}


def counters(check: str, value: int) -> Callable[[Path], None]:
    return lambda root: write(root, {f"{PORT}/{IB_COUNTERS[check]}": str(value)})


def put(name: str, content: str) -> Callable[[Path], None]:
    return lambda root: write(root, {name: content})


def remove_disk(root: Path) -> None:
    (root / "sys/class/nvme/nvme0").rename(root / "gone")


def remove_port(root: Path) -> None:
    (root / "sys/class/infiniband/mlx5_7").rename(root / "gone")


IB_ACTIONS = {
    **dict.fromkeys(
        ("ib_link_downed", "ib_local_link_integrity_errors", "ib_excessive_buffer_overrun_errors"),
        Action.TRIAGE,
    ),
    "ib_rnr_nak_retry_err": Action.TRIAGE,
    "ib_symbol_error": Action.TRIAGE,
}
READ_ONLY = trees.MOUNTINFO.replace("/dev/nvme0n1p2 rw", "/dev/nvme0n1p2 ro")
NOT_MOUNTED = "".join(line for line in trees.MOUNTINFO.splitlines(keepends=True) if "/jail" not in line)
STUCK = trees.STAT.format(pid=700, name="nvidia-smi", state="D")
FAILS: Mapping[str, tuple[Callable[[Path], None], float, Action]] = {
    "pcie_degraded": (put(f"{device(NVME)}/current_link_speed", "8.0 GT/s PCIe"), 0, Action.TRIAGE),
    "ib_port_missing": (remove_port, 0, Action.TRIAGE),
    "ib_port_down_s": (put(f"{PORT}/phys_state", "3: Disabled"), 31, Action.TRIAGE),
    "ib_rate_low": (put(f"{PORT}/rate", "200 Gb/sec (4X HDR)"), 0, Action.TRIAGE),
    **{
        name: (counters(name, 1_000_000_000), 0, IB_ACTIONS.get(name, Action.NONE)) for name in IB_COUNTERS
    },
    "carrier_changes": (put("sys/class/net/eth0/carrier_changes", "5"), 60, Action.NONE),
    "memory_errors_uncorrected": (put("sys/devices/system/edac/mc/mc0/ue_count", "1"), 0, Action.TRIAGE),
    "memory_errors_corrected": (put("sys/devices/system/edac/mc/mc0/ce_count", "14"), 60, Action.TRIAGE),
    "nvme_not_live": (put("sys/class/nvme/nvme0/state", "dead"), 0, Action.REBOOT),
    "nvme_missing": (remove_disk, 0, Action.REBOOT),
    "thermal_zone": (put(f"{ZONE}/temp", "96000"), 0, Action.TRIAGE),
    "mount_missing": (put("proc/self/mountinfo", NOT_MOUNTED), 0, Action.TRIAGE),
    "mount_read_only": (put("proc/self/mountinfo", READ_ONLY), 0, Action.TRIAGE),
    "disk_used": (lambda root: room(root, "/", bytes_used=900 << 30, bytes_free=100 << 30), 0, Action.NONE),
    "disk_full": (lambda root: room(root, "/", bytes_used=999 << 30, bytes_free=1 << 30), 0, Action.TRIAGE),
    "inodes_used": (lambda root: room(root, "/jail", inodes_free=100_000), 0, Action.NONE),
    "inodes_full": (lambda root: room(root, "/jail", inodes_free=0), 0, Action.TRIAGE),
    "blocked_task_s": (put("proc/700/stat", STUCK), 301, Action.REBOOT),
    "load_per_cpu": (put("proc/loadavg", "3000 2500 30.00 3/4000 12345"), 0, Action.NONE),
    "cpus_missing": (put("sys/devices/system/cpu/online", "0-95,97-191"), 0, Action.REBOOT),
    "memory_missing": (put("proc/meminfo", "MemTotal:       1900000000 kB"), 0, Action.TRIAGE),
    "clock_offset_s": (
        put("@calls/adjtimex.json", '{"is_disciplined": true, "offset_s": -1.5}'), 0, Action.NONE,
    ),
    "slow_clocksource": (
        put("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"), 0, Action.NONE,
    ),
}  # fmt: skip
"""What is changed on a healthy node, for how many seconds it lasts, and the action of the policy."""
GPU_FAILS: Mapping[str, tuple[str, Action]] = {
    "gpu_missing": ("handle 15", Action.REBOOT),
    "gpu_lost": ("lost_after 5", Action.REBOOT),
    "thermal_margin": ("margin -3", Action.TRIAGE),
    "ecc_uncorrected": ("ecc_uncorrected 1", Action.RESET_GPU),
    "ecc_corrected": ("ecc_corrected 20000001", Action.TRIAGE),
    "sram_uncorrected": ("sram_uncorrected 1", Action.RESET_GPU),
    "sram_corrected": ("sram_corrected 10001", Action.TRIAGE),
    "row_remap_pending": ("remap_pending 1", Action.RESET_GPU),
    "row_remap_failed": ("remap_failed 1", Action.RMA),
    "retired_pages": ("retired 11", Action.RMA),
    "nvlink_down": ("nvlinks_up 17", Action.RESET_GPU),
    "pcie_width": ("width 8", Action.TRIAGE),
    "gpu_pcie_speed": ("gen 3", Action.TRIAGE),
}
HERE = "tests/fast/fleet/agent"
ELSEWHERE = {
    "mount_silent_s": f"{HERE}/test_children.py::test_a_mount_that_does_not_answer",
    "gpu_stalled_s": f"{HERE}/test_checks.py::test_a_gpu_in_use_that_does_nothing_for_ten_minutes",
    "hw_slowdown": f"{HERE}/test_watch.py::test_a_gpu_that_slows_down_again_and_again",
}


def test_every_check_has_a_case() -> None:
    assert FAILS.keys() | GPU_FAILS.keys() | ELSEWHERE.keys() == CHECKS.keys()
    for place in ELSEWHERE.values():
        file, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text()


def test_a_healthy_node_passes_every_check(tmp_path: Path) -> None:
    checked = Checked(trees.h100_node(tmp_path))
    checked.after(0)
    said = checked.after(DAY + 1)
    passed = {
        name for name, each in said.items() if isinstance(each, CheckAnswer) and each.status is Status.PASS
    }
    assert passed >= set(CHECKS) - set(OF_GPUS)
    assert passed == set(said), "and nothing else was said"


@pytest.mark.parametrize("name", FAILS)
def test_a_check_fails(name: str, tmp_path: Path) -> None:
    change, seconds, action = FAILS[name]
    checked = Checked(trees.h100_node(tmp_path))
    checked.after(0)
    change(tmp_path)
    checked.after(1)
    answer = checked.after(seconds)[name]
    assert isinstance(answer, CheckAnswer)
    assert (answer.status, answer.action) == (Status.FAIL, action)
    assert answer.threshold and answer.source and answer.version and answer.sample


@pytest.mark.parametrize("name", GPU_FAILS)
def test_a_check_of_gpus_fails(name: str, node: Node) -> None:
    lines, action = GPU_FAILS[name]
    node.gpus("", lines, *[""] * 6)
    document = node.check()
    verdicts = {each.check: each for each in document.verdicts}
    assert (verdicts[name].status, verdicts[name].action) == (Status.FAIL, action)
    assert name == "gpu_missing" or GPUS[1] in verdicts[name].sample or "GPU 1" in verdicts[name].sample
    assert GPUS[0] not in verdicts[name].sample, "the other GPUs are healthy"
    assert "a stand-in for NVML" in document.simulated


def test_healthy_gpus_pass(node: Node) -> None:
    node.gpus(*["retired 0"] * 8)
    verdicts = node.verdicts()
    assert not bad(verdicts)
    assert verdicts.keys() >= set(OF_GPUS) - {"hw_slowdown"}, "which counts over ten minutes"


WAITING = "use 100\nmemory_use 0\npower_mw 147000"
"""As an H100 was measured while a kernel waited on all of its processors."""


@pytest.mark.parametrize(
    ("lines", "sample"),
    [
        (WAITING, "for at least 0 s"),
        ("use 100\nmemory_use 23\npower_mw 693000", "no"),
        ("use 100\nmemory_use 3\npower_mw 147000", "no"),
        ("use 0\nmemory_use 0\npower_mw 78000", "no"),
    ],
)
def test_a_gpu_in_use_that_does_nothing_is_seen(node: Node, lines: str, sample: str) -> None:
    node.gpus(lines)
    verdict = node.verdicts()["gpu_stalled_s"]
    assert verdict.status is Status.PASS, "not for long yet"
    assert verdict.sample.startswith(sample)


def test_a_gpu_in_use_that_does_nothing_for_ten_minutes() -> None:
    """A warning about the application: nothing is done to the node."""
    judge = Judge(default_policy(), History())
    seen = [Reading("gpu_stalled_s", GPUS[0], 1, "in use 100 %"), Reading("gpu_stalled_s", GPUS[1], 0)]
    statuses = dict[float, CheckAnswer]()
    for now in (1000.0, 1600.0, 1601.0):
        (statuses[now],), _ = judge.answers(seen, [], now)
    assert [each.status for each in statuses.values()] == [Status.PASS, Status.PASS, Status.FAIL]
    last = statuses[1601.0]
    assert (last.action, last.is_fatal, last.source) == (Action.NONE, False, "byterobust")
    assert GPUS[0] in last.sample and GPUS[1] not in last.sample
    (calm,), _ = judge.answers([Reading("gpu_stalled_s", GPUS[0], 0)], [], 1602.0)
    assert calm.status is Status.PASS


@pytest.mark.parametrize(
    ("model", "margin", "status"),
    [
        ("NVIDIA H100 80GB HBM3", -2, "pass"),
        ("NVIDIA H100 80GB HBM3", -3, "fail"),
        ("NVIDIA B200", -3, "pass"),
        ("NVIDIA B200", -4, "fail"),
        ("NVIDIA A100-SXM4-80GB", -1, "fail"),
        ("NVIDIA L40S", 0, "pass"),
        ("Tesla T4", -9, "not_run"),
    ],
)
def test_the_limit_of_heat_is_that_of_the_generation(
    node: Node, model: str, margin: int, status: str
) -> None:
    node.gpus(*[f"name {model}\nmargin {margin}"] * 8)
    document = node.check()
    said = {each.check: each.status.value for each in document.verdicts}
    said |= {each.check: "not_run" for each in document.not_run}
    assert said["thermal_margin"] == status


def test_a_board_without_margin_and_without_links(node: Node) -> None:
    """The board is like an L40S: no NVLink, and a driver that tells the temperature of its slowdown."""
    del node.expected["nvlinks"]
    node.gpus(
        *["name NVIDIA L40S\nmargin -99\ntemperature 88\nslowdown_at 87\nnvlinks -1\nremap_pending -1"] * 8
    )
    document = node.check()
    verdicts = {each.check: each for each in document.verdicts}
    assert verdicts["thermal_margin"].status is Status.FAIL
    assert "-1 °C (88 °C, slows down at 87 °C)" in verdicts["thermal_margin"].sample
    left_out = {each.check for each in document.not_run}
    assert left_out >= {"nvlink_down", "row_remap_pending", "row_remap_failed", "retired_pages"}


def test_a_fault_of_a_link_or_of_the_storage_says_so(tmp_path: Path) -> None:
    root = trees.h100_node(tmp_path)
    remove_port(root)
    write(root, {"proc/self/mountinfo": NOT_MOUNTED})
    said = Checked(root).after(0)
    scopes = {name: each.scope for name, each in said.items() if isinstance(each, CheckAnswer)}
    assert (scopes["ib_port_missing"], scopes["mount_missing"]) == (CheckScope.LINK, CheckScope.STORAGE)
    assert scopes["nvme_not_live"] is CheckScope.NODE


def test_what_does_not_apply_is_not_run_and_no_pass(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            "proc/self/mountinfo": "",
            "proc/loadavg": "0 0 0 1/1 1",
            "sys/devices/system/cpu/online": "0",
            "@calls/adjtimex.json": '{"is_disciplined": false, "offset_s": 0}',
        },
    )
    write(tmp_path, {"proc/sys/kernel/random/boot_id": trees.BOOT})
    said = Checked(tmp_path, **{**dict.fromkeys(trees.EXPECTED), "mounts": ()}).after(0)
    not_run = {name for name, each in said.items() if isinstance(each, NotRun)}
    assert not_run >= {"ib_port_down_s", "ib_symbol_error", "nvme_not_live", "pcie_degraded", "thermal_zone"}
    assert not_run >= {"clock_offset_s", "memory_errors_corrected", "mount_missing", "kernel_log"}
    assert all(each.why for each in said.values() if isinstance(each, NotRun))


def test_a_link_slower_than_its_device_in_a_slow_slot_is_as_fast_as_it_can_be(tmp_path: Path) -> None:
    root = trees.h100_node(tmp_path)
    slow = "8.0 GT/s PCIe"
    write(root, {f"{bridge(NVME)}/max_link_speed": slow, f"{device(NVME)}/current_link_speed": slow})
    answer = Checked(root).after(0)["pcie_degraded"]
    assert isinstance(answer, CheckAnswer) and answer.status is Status.PASS


def test_an_idle_gpu_may_have_a_slow_link(node: Node) -> None:
    node.gpus(*["gen 1\npstate 8"] * 8)
    assert "gpu_pcie_speed" not in node.verdicts()


def test_a_port_that_is_down_since_just_now_is_unknown_until_it_is_a_fault(tmp_path: Path) -> None:
    checked = Checked(trees.h100_node(tmp_path))
    write(tmp_path, {f"{PORT}/state": "1: DOWN"})
    states = [checked.after(seconds)["ib_port_down_s"] for seconds in (0, 20, 20)]
    assert [each.status for each in states if isinstance(each, CheckAnswer)] == [
        *(Status.UNKNOWN, Status.UNKNOWN, Status.FAIL)
    ]
    write(tmp_path, {f"{PORT}/state": "4: ACTIVE"})
    up = checked.after(5)["ib_port_down_s"]
    assert isinstance(up, CheckAnswer) and up.status is Status.PASS


def test_a_counter_is_judged_by_its_growth_and_after_its_time(tmp_path: Path) -> None:
    checked = Checked(trees.h100_node(tmp_path))
    assert isinstance(checked.after(0)["ib_symbol_error"], NotRun), "7 at the first look is nobody's growth"
    counters("ib_symbol_error", 60)(tmp_path)
    assert isinstance(checked.after(60)["ib_symbol_error"], NotRun), (
        "53 in a minute may yet be 120 in an hour"
    )
    passed = checked.after(3600)["ib_symbol_error"]
    assert isinstance(passed, CheckAnswer) and passed.status is Status.PASS
    counters("ib_symbol_error", 300)(tmp_path)
    failed = checked.after(60)["ib_symbol_error"]
    assert isinstance(failed, CheckAnswer) and failed.status is Status.FAIL
    assert "mlx5_0/1: +" in failed.sample and "mlx5_1" not in failed.sample


def test_an_increase_is_remembered_for_an_hour(tmp_path: Path) -> None:
    checked = Checked(trees.h100_node(tmp_path))
    checked.after(0)
    counters("ib_link_downed", 8)(tmp_path)
    said = [checked.after(seconds)["ib_link_downed"] for seconds in (10, 10, 3500, 200)]
    states = [each.status for each in said if isinstance(each, CheckAnswer)]
    assert states == [Status.FAIL, Status.FAIL, Status.FAIL, Status.PASS]


def test_a_counter_that_began_again_did_not_shrink(tmp_path: Path) -> None:
    checked = Checked(trees.h100_node(tmp_path))
    checked.after(0)
    counters("ib_link_downed", 2)(tmp_path)
    answer = checked.after(10)["ib_link_downed"]
    assert isinstance(answer, CheckAnswer) and "+2 in 10 s" in answer.sample


def test_names_of_processes_cannot_pose_as_states(tmp_path: Path) -> None:
    """The tree has a process with the name "a) D (b"; a real one may have any."""
    said = Checked(trees.h100_node(tmp_path)).after(0)["blocked_task_s"]
    assert isinstance(said, CheckAnswer) and said.sample == "no (no task is blocked)"


def test_a_filesystem_that_is_meant_to_be_read_only_passes(tmp_path: Path) -> None:
    said = Checked(trees.h100_node(tmp_path)).after(0)["mount_read_only"]
    assert isinstance(said, CheckAnswer) and said.status is Status.PASS, "/images is"


TENANT_MOUNTS = """\
40 22 7:3 / /var/lib/neocloud/claims/tenant-1 rw,relatime - ext4 /dev/loop3 ro
41 22 0:99 / /var/lib/containers/x/merged/data rw,relatime - nfs4 10.6.6.6:/evil rw
"""


def test_a_tenant_who_fills_or_breaks_a_volume_of_its_own_does_not_drain_the_node(tmp_path: Path) -> None:
    """Volumes of pods are mounts of the host too. A tenant can fill them, and serve bad NFS."""
    root = trees.h100_node(tmp_path)
    write(root, {"proc/self/mountinfo": trees.MOUNTINFO + TENANT_MOUNTS})
    full = {**trees.ROOM, "bytes_used": 1 << 30, "bytes_free": 0, "inodes_free": 0}
    rooms = {point: trees.ROOM for point in ("/", "/jail")} | {"/var/lib/neocloud/claims/tenant-1": full}
    write(root, {"@calls/statvfs.json": json.dumps(rooms)})
    said = Checked(root).after(0)
    for name in ("disk_full", "disk_used", "inodes_full", "mount_read_only", "mount_silent_s"):
        answer = said[name]
        assert isinstance(answer, CheckAnswer) and answer.status is Status.PASS, name


def test_a_tenant_who_blocks_a_task_of_its_own_does_not_reboot_the_node(tmp_path: Path) -> None:
    """A program that called vfork waits in state D while its child likes; others are in containers."""
    root = trees.h100_node(tmp_path)
    blocked = {f"proc/{pid}/stat": trees.STAT.format(pid=pid, name="job", state="D") for pid in (801, 802)}
    write(root, {**blocked, "proc/801/wchan": "wait_for_vfork_done"})
    for pid, namespace in (("self", 1), ("801", 1), ("802", 2)):
        (root / f"proc/{pid}/ns").mkdir()
        (root / f"proc/{pid}/ns/pid").symlink_to(f"pid:[{namespace}]")
    checked = Checked(root)
    checked.after(0)
    answer = checked.after(400)["blocked_task_s"]
    assert isinstance(answer, CheckAnswer) and answer.status is Status.PASS


def test_the_guide_has_every_check_with_its_limit() -> None:
    rows = (ROOT / "docs/guides/fleet-checks.md").read_text().splitlines()
    cells = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in rows if row.startswith("| `")]
    told = {row[0]: row for row in cells if len(row) == 5}
    assert told.keys() == CHECKS.keys()
    for name, check in CHECKS.items():
        response = default_policy().response_to(CodeKind.COUNTER, name)
        limit = limit_of(response)
        assert limit is not None and told[name][2] == f"{limit.text} {check.unit}".strip()
        assert told[name][4] == f"{response.severity}, `{response.action}"
