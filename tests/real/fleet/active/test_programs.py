"""The programs of active checks: what they measure, that they can fail, that they end when a job starts."""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from neocloud.fleet.active import all_reduce, cpu, pair, sdc
from neocloud.fleet.active.bundle import LOADER, archive
from neocloud.fleet.active.catalogue import GOLDEN, catalogue, named, suite_checks
from neocloud.fleet.active.jobs import running_job
from neocloud.fleet.active.judge import CheckedBoot, CheckMeasurement, judge
from neocloud.fleet.active.report import decode
from neocloud.fleet.active.run import GPU_PROGRAMS, NICE, Runner
from neocloud.fleet.agent.child import Children, Job, ProbeOutcome
from neocloud.fleet.agent.document import NotRun
from neocloud.fleet.agent.probe_result import ProbeResult
from neocloud.fleet.nodes.events import Status, Verdict
from neocloud.fleet.policy.actions import Suite

HERE = CheckedBoot("n", "b", 1.0)


def runner(folder: Path, **more) -> Runner:
    return Runner(host="n", folder=folder, stop=more.pop("stop", lambda: ""), boot="b", **more)


@pytest.fixture(autouse=True)
def usual_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside other tests on all processors, programs of the lowest priority would not end in time."""
    monkeypatch.setattr("neocloud.fleet.active.run.NICE", 0)
    monkeypatch.setattr("neocloud.fleet.active.run.BUSY_SHARE", 9.0)


def test_the_known_work_has_the_golden_hash() -> None:
    assert sdc.work() == GOLDEN


@pytest.mark.parametrize("stage", [name for name, _ in sdc.STAGES])
@pytest.mark.parametrize("bit", [0, 77, 255])
def test_one_flipped_bit_of_any_stage_gives_another_hash(stage: str, bit: int) -> None:
    def flip(name: str, data: bytes) -> bytes:
        if name != stage:
            return data
        at = bit % (8 * len(data))
        wrong = bytearray(data)
        wrong[-1 - at // 8] ^= 1 << at % 8
        return bytes(wrong)

    assert sdc.work(flip) != GOLDEN


def test_a_processor_that_is_wrong_once_fails_the_check(monkeypatch, tmp_path: Path) -> None:
    """One flipped bit in one round of many, as a defective processor gives it."""
    monkeypatch.setattr(cpu, "SDC_SECONDS", 0.05)
    rounds = 0

    def work() -> str:
        nonlocal rounds
        rounds += 1
        return sdc.work(lambda name, data: bytes([data[0] ^ 1]) + data[1:]) if rounds == 2 else sdc.work()

    check = replace(named("cpu_sdc"), seconds=10)
    ran = runner(tmp_path, programs={"cpu_sdc": lambda folder: cpu.cpu_sdc(folder, work)}).run([check])
    (verdict,) = ran.document.verdicts
    assert verdict.status is Status.FAIL and "1 wrong rounds" in verdict.sample and "cpu" in verdict.sample
    (verdict,) = runner(tmp_path).run([check]).document.verdicts
    assert verdict.status is Status.PASS


def test_this_host_passes_the_quick_suite_and_leaves_no_file(tmp_path: Path) -> None:
    ran = runner(tmp_path).run(suite_checks(Suite.QUICK))
    told = {each.check: each.status for each in ran.document.verdicts}
    left_out = {each.check for each in ran.document.not_run}
    assert set(told) | left_out == {each.name for each in suite_checks(Suite.QUICK)}
    assert {"cpu_sdc", "memory_bandwidth"} <= set(told)
    assert set(told.values()) == {Status.PASS} and not list(tmp_path.iterdir())
    assert all(each.value > 0 for each in ran.measured if each.check != "cpu_sdc")


def test_a_file_that_reads_back_otherwise_fails(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "FILE_BYTES", 2 << 20)
    monkeypatch.setattr(cpu, "IN_MEMORY", frozenset())
    assert cpu.disk_read(tmp_path).readings[0].value > 0

    def corrupt(path: Path, block: bytes) -> float:
        path.write_bytes(block + bytes([block[0] ^ 1]) + block[1:])
        return 1.0

    monkeypatch.setattr(cpu, "_write", corrupt)
    (reading,) = cpu.disk_read(tmp_path).readings
    said = judge(
        named("disk_read"),
        [CheckMeasurement("disk_read", "", reading.value, "MB/s", reading.note)],
        HERE,
        "1",
    )
    assert isinstance(said, Verdict) and said.status is Status.FAIL and "differs" in said.sample


def test_a_folder_in_memory_says_nothing_of_a_disk() -> None:
    mounts = "overlay / overlay rw 0 0\ntmpfs /a\\040b tmpfs rw 0 0\next4 /a ext4 rw 0 0\n"
    assert cpu.filesystem_type(Path("/a b/c"), mounts) == "tmpfs"
    assert cpu.filesystem_type(Path("/a/b"), mounts) == "ext4"
    assert cpu.filesystem_type(Path("/b"), mounts) == "overlay"


def test_a_program_that_hangs_is_ended_and_unknown(tmp_path: Path) -> None:
    check = replace(named("cpu_sdc"), seconds=0.2)
    ran = runner(tmp_path, programs={"cpu_sdc": lambda folder: time.sleep(60)}).run([check])
    (verdict,) = ran.document.verdicts
    assert verdict.status is Status.UNKNOWN and "did not answer within" in verdict.sample


def stopped(folder: Path) -> ProbeResult:
    os.kill(os.getpid(), signal.SIGSTOP)
    return ProbeResult()


def spinning(folder: Path) -> ProbeResult:
    while True:
        pass


def hanging(folder: Path) -> ProbeResult:
    threading.Event().wait()
    return ProbeResult()


@pytest.mark.parametrize(("program", "is_busy"), [(stopped, True), (spinning, False), (hanging, False)])
def test_a_program_that_gets_no_processor_is_not_run_and_one_that_takes_too_long_unknown(
    tmp_path: Path, program: Callable[[Path], ProbeResult], is_busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process is what one is that the scheduler passes over: it could not have been faster."""
    monkeypatch.setattr("neocloud.fleet.active.run.BUSY_FACTOR", 3.0 if is_busy else 500.0)
    check = replace(named("memory_bandwidth"), seconds=0.6)
    ran = runner(tmp_path, programs={check.name: program}).run([check])
    if is_busy:
        (left_out,) = ran.document.not_run
        assert left_out.why.startswith("busy: it waited ") and not ran.document.verdicts
    else:
        (verdict,) = ran.document.verdicts
        assert verdict.status is Status.UNKNOWN and "did not answer within 0.6 s" in verdict.sample


def test_a_program_that_shares_its_processor_is_seen_to_wait() -> None:
    processor = min(os.sched_getaffinity(0))

    def work() -> ProbeResult:
        os.sched_setaffinity(0, {processor})
        os.nice(NICE)
        until = time.process_time() + 0.3
        while time.process_time() < until:
            pass
        return ProbeResult()

    other = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-S", "-c", other, f"{processor}"]) as neighbour:
        try:
            (outcome,) = Children().run([Job("work", work, 20.0, 60.0)])
        finally:
            neighbour.kill()
    assert outcome.found is not None and outcome.waited_s > 0.2 * outcome.seconds, outcome


def test_what_was_measured_beside_others_load_fails_nothing_and_is_compared_with_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("neocloud.fleet.active.run.BUSY_SHARE", 0.2)
    of, place, limit = runner(tmp_path), CheckedBoot("a", "b", 1.0), 0.5

    def judged(name: str, value: float, waited_s: float) -> tuple[Verdict | NotRun, int]:
        found, measured = ProbeResult(), list[CheckMeasurement]()
        found.read(name, "", value, "", unit=named(name).unit)
        outcome = ProbeOutcome(name, found, seconds=10.0, waited_s=waited_s)
        return of._judged(named(name), outcome, place, measured), len(measured)

    slow, kept = judged("memory_bandwidth", limit / 2, 5.0)
    assert (
        isinstance(slow, NotRun) and slow.why == "busy: it waited 5.0 of 10.0 s for a processor" and not kept
    )
    fast, kept = judged("memory_bandwidth", limit * 2, 5.0)
    assert isinstance(fast, Verdict) and fast.status is Status.PASS and not kept
    slow, kept = judged("memory_bandwidth", limit / 2, 1.0)
    assert isinstance(slow, Verdict) and slow.status is Status.FAIL and kept == 1
    wrong, kept = judged("cpu_sdc", 1.0, 9.0)
    assert isinstance(wrong, Verdict) and wrong.status is Status.FAIL, "load makes no bit wrong"


def test_checks_that_the_time_of_a_run_does_not_reach_are_not_begun(tmp_path: Path) -> None:
    (left_out,) = runner(tmp_path, until=time.monotonic()).run([named("cpu_sdc")]).document.not_run
    assert left_out.why == "busy: the others took the time of the run"


def test_a_job_that_starts_ends_the_check_and_those_after_it(tmp_path: Path) -> None:
    began = time.monotonic()
    stop = lambda: "a job" if time.monotonic() > began + 0.3 else ""  # noqa: E731
    programs = {"cpu_sdc": lambda folder: time.sleep(60), "memory_bandwidth": lambda folder: ProbeResult()}
    checks = [named("cpu_sdc"), named("memory_bandwidth")]
    ran = runner(tmp_path, programs=programs, stop=stop).run(checks)
    assert ran.preempted == "a job" and ran.preempted_after_s < 1.0 and time.monotonic() < began + 2.0
    assert not ran.document.verdicts
    assert [each.why for each in ran.document.not_run] == ["It was ended: a job", "It was not begun: a job"]


def test_jobs_are_seen_by_their_process(tmp_path: Path) -> None:
    for number, name in (("1", "init"), ("7", "slurmd"), ("self", "slurmstepd")):
        (tmp_path / number).mkdir()
        (tmp_path / number / "comm").write_text(f"{name}\n")
    (tmp_path / "9").mkdir()  # it has ended
    assert running_job(tmp_path) == ""
    (tmp_path / "7" / "comm").write_text("slurmstepd\n")
    assert "process 7" in running_job(tmp_path)


def test_without_a_gpu_or_a_program_nothing_is_claimed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("neocloud.fleet.active.run.GPU_DEVICES", ())
    checks = [each for each in catalogue() if each.program in ("gpu", "dcgm", "pair", "")]
    ran = runner(tmp_path).run(checks)
    assert {each.check for each in ran.document.not_run} == {each.name for each in checks}
    assert not ran.document.verdicts and not ran.measured


class Serving:
    """The other node of a pair, as a thread of this process."""

    def __init__(self, token: str = "", seconds: float = 60.0) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.partner = pair.Partner(f"127.0.0.1:{self.server.getsockname()[1]}", token)
        arguments = (self.server, time.monotonic() + seconds, token)
        self._thread = threading.Thread(target=pair.serve, args=arguments)

    def __enter__(self) -> pair.Partner:
        self._thread.start()
        return self.partner

    def __exit__(self, *_: object) -> None:
        self.partner.leave()
        self._thread.join(5)
        assert not self._thread.is_alive(), "it ends when the other node leaves"
        self.server.close()


def test_two_nodes_measure_bandwidth_and_round_trips(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pair, "SECONDS", 0.2)
    with Serving("secret") as partner:
        checks = [named("pair_bandwidth"), named("pair_latency")]
        ran = runner(tmp_path, partner=partner).run(checks)
    assert {each.check: each.status for each in ran.document.verdicts} == {
        "pair_bandwidth": Status.PASS,
        "pair_latency": Status.PASS,
    }, ran.document
    assert all("TCP" in each.note for each in ran.measured)


def test_without_the_token_nothing_is_served(tmp_path: Path) -> None:
    with Serving("secret") as partner:
        outsider = replace(partner, token="guess")
        (verdict,) = runner(tmp_path, partner=outsider).run([named("pair_latency")]).document.verdicts
        assert verdict.status is Status.UNKNOWN and "connection" in verdict.sample.lower()
        outsider.leave()
        (verdict,) = runner(tmp_path, partner=partner).run([named("pair_latency")]).document.verdicts
        assert verdict.status is Status.PASS, "an outsider cannot end it, either"


def test_a_partner_that_does_not_answer_is_unknown(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(pair, "AWAIT_S", 0.0)
    partner = pair.Partner("127.0.0.1:9")
    (verdict,) = runner(tmp_path, partner=partner).run([named("pair_latency")]).document.verdicts
    assert verdict.status is Status.UNKNOWN and "refused" in verdict.sample


def test_without_torch_no_all_reduce_is_claimed_and_with_no_gpu_none_of_nccl(
    tmp_path: Path, monkeypatch
) -> None:
    torch = ModuleType("torch")
    torch.__spec__ = ModuleSpec("torch", None)
    vars(torch)["cuda"] = SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    with Serving() as partner:
        (left_out,) = runner(tmp_path, partner=partner).run([named("pair_nccl_all_reduce")]).document.not_run
        assert "no GPU that CUDA can use" in left_out.why
        monkeypatch.setattr(all_reduce.importlib.util, "find_spec", lambda name: None)
        (left_out,) = runner(tmp_path, partner=partner).run([named("pair_all_reduce")]).document.not_run
        assert left_out.why == "There is no torch in this Python, so only TCP is measured"


def start_program(*arguments: str, token: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-c", LOADER, *arguments]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert started.stdin is not None
    started.stdin.write(archive(token))
    started.stdin.close()
    started.stdin = None
    return started


def test_two_programs_reduce_with_gloo_and_find_the_sums_right(tmp_path: Path, monkeypatch) -> None:
    """Two processes of this host, each with the torch of the tests."""
    pytest.importorskip("torch")
    own = (
        "from neocloud.fleet.active import __main__ as m, all_reduce, run; run.NICE = 0; run.BUSY_SHARE = 9; "
    )
    own += "all_reduce.SECONDS = 0.2; all_reduce.NUMBERS = 1 << 16; "
    own += "m.ONE_AT_A_TIME += str(__import__('os').getpid()); from neocloud"
    monkeypatch.setattr(f"{__name__}.LOADER", LOADER.replace("from neocloud", own, 1))
    with start_program("serve", "--host", "b", "--most-seconds", "100", token="t") as served:
        assert served.stderr is not None and served.stdout is not None
        port = int(served.stderr.readline())
        options = ("--partner", f"127.0.0.1:{port}", "--folder", str(tmp_path))
        with start_program("run", "--host", "a", "--check", "pair_all_reduce", *options, token="t") as ran:
            out, err = ran.communicate(timeout=100)
        assert ran.returncode == 0, err
        (measured,) = decode(out, host="a").measured
        assert measured.value > 0 and measured.note == "gloo, 0 MiB, with 127.0.0.1", measured
        assert decode(served.stdout.read(), host="b").preempted == "" and served.wait(20) == 0


def test_a_wrong_sum_is_a_rate_of_nothing_and_fails(monkeypatch) -> None:
    """A stand-in for the two nodes: one bit of what comes back is another one."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(all_reduce, "NUMBERS", 1000)
    monkeypatch.setattr(all_reduce, "SECONDS", 0.01)

    class Distributed(SimpleNamespace):
        def all_reduce(self, numbers) -> None:
            if len(numbers) > 1:
                numbers += 3 - int(numbers[0])
                numbers[77] += self.error

    def rate(error: float) -> tuple[float, str]:
        nothing = lambda *given, **named: None  # noqa: E731
        distributed = Distributed(
            error=error, init_process_group=nothing, destroy_process_group=nothing, Store=object
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
        return all_reduce.join("gloo", link)

    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as link,
    ):
        value, note = rate(2.0**-20)
        assert value == 0.0 and note.startswith("1 wrong sums; gloo") and torch is not None
        assert rate(0.0)[0] > 0


def ends_of_a_connection() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


def listening() -> set[str]:
    """The TCP ports on which this process accepts connections."""
    tables = [Path(f"/proc/net/{name}").read_text().splitlines() for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    own = set[str]()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            own.add(os.readlink(f"/proc/self/fd/{name}"))
    return {each[1] for each in rows if each[3] == "0A" and f"socket:[{each[9]}]" in own}


def test_an_outsider_finds_no_port_of_the_store_in_which_two_nodes_meet(monkeypatch) -> None:
    """Torch's TCPStore would answer any client, and let it set the values of the two nodes."""
    pytest.importorskip("torch")
    before, told = listening(), dict[int, object]()

    def measure(distributed, transport, store, rank, peers) -> tuple[float, int]:
        store.set(f"address of {rank}", f"port of {rank}")
        told[rank] = bytes(store.get(f"address of {1 - rank}")), listening() - before
        return 1.0, 0

    monkeypatch.setattr(all_reduce, "_measure", measure)
    serving, measuring = ends_of_a_connection()
    with serving, measuring:
        led = threading.Thread(target=all_reduce.lead, args=("gloo", serving))
        led.start()
        assert measuring.recv(5) == all_reduce.READY.encode()
        all_reduce.join("gloo", measuring)
        led.join(10)
    assert told == {0: (b"port of 1", set()), 1: (b"port of 0", set())}
    distributed = importlib.import_module("torch.distributed")
    store = distributed.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    assert listening() - before, "what this test looks for is found where there is one"
    del store


@pytest.mark.parametrize("sent", [b"\xff" * 8, b"\0\0\0\1" * 2 + b"k"])
def test_a_node_that_sends_too_much_or_ends_is_refused(sent: bytes) -> None:
    pytest.importorskip("torch")
    other, here = ends_of_a_connection()
    with here:
        with other:
            other.sendall(sent)
        with pytest.raises(OSError, match=r"more than an exchange|ended the connection"):
            all_reduce.store_over(here).get("k")


def test_an_outsider_on_a_port_of_gloo_makes_the_result_count_for_nothing() -> None:
    """A connection from a third address is noticed; one from either node is not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        allowed = ("127.0.0.1", "10.0.0.9")
        with socket.create_connection(server.getsockname()), server.accept()[0]:
            all_reduce.refuse_unexpected_peers(allowed)
        with (
            socket.create_connection(server.getsockname(), source_address=("127.0.0.2", 0)),
            server.accept()[0],
            pytest.raises(all_reduce.UnexpectedPeer, match=r"127\.0\.0\.2 is connected"),
        ):
            all_reduce.refuse_unexpected_peers(allowed)
        all_reduce.refuse_unexpected_peers(allowed)


def test_the_token_of_a_pair_is_in_no_argument_and_no_environment(tmp_path: Path) -> None:
    """Users of a worker see the arguments of all its processes."""
    secret = "b7d1c0ffee"
    with start_program("serve", "--host", "b", "--most-seconds", "30", token=secret) as served:
        assert served.stderr is not None
        port = int(served.stderr.readline())
        about = Path(f"/proc/{served.pid}")
        assert secret.encode() not in (about / "cmdline").read_bytes() + (about / "environ").read_bytes()
        outsider, partner = (pair.Partner(f"127.0.0.1:{port}", each) for each in ("", secret))
        for each, status in ((outsider, Status.UNKNOWN), (partner, Status.PASS)):
            ran = runner(tmp_path, partner=each).run([named("pair_latency")])
            assert [said.status for said in ran.document.verdicts] == [status]
        partner.leave()
        assert secret.encode() not in served.communicate(timeout=20)[0] and served.returncode == 0


def test_the_archive_runs_from_memory_alone_on_a_bare_python(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-S", "-c", LOADER, "run", "--check", "cpu_sdc", "--host", "w"]
    ran = subprocess.run(
        [*command, "--folder", str(tmp_path)], input=archive(), capture_output=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    (verdict,) = decode(ran.stdout, host="w").document.verdicts
    assert verdict.check == "cpu_sdc" and verdict.status is Status.PASS


def test_limits_are_of_the_model_and_have_a_source() -> None:
    gemm = named("gpu_gemm")
    for model, value in (("NVIDIA H100 80GB HBM3", 595), ("NVIDIA GB200", 1366), ("NVIDIA B200", 1308)):
        limit = gemm.limit(f"gpu0 {model}")
        assert limit is not None and limit.value == value
    assert gemm.limit("gpu0 NVIDIA GH200 480GB") is None and gemm.limit("gpu0 L4") is None
    assert all(limit.source and limit.note for each in catalogue() for limit in each.limits)


def test_the_worst_device_decides_and_a_model_without_limit_gets_no_verdict() -> None:
    gemm = named("gpu_gemm")
    good = CheckMeasurement("gpu_gemm", "gpu0 NVIDIA H100", 700, "TFLOP/s")
    bad = CheckMeasurement("gpu_gemm", "gpu1 NVIDIA H100", 500, "TFLOP/s")

    def verdict_on(*measured: CheckMeasurement) -> Verdict:
        said = judge(gemm, measured, HERE, "1")
        assert isinstance(said, Verdict)
        return said

    assert verdict_on(good).status is Status.PASS
    said = verdict_on(good, bad)
    assert (
        said.status is Status.FAIL and said.sample.startswith("gpu1") and said.threshold == ">= 595 TFLOP/s"
    )
    assert isinstance(judge(gemm, [replace(good, device="gpu0 L4")], HERE, "1"), NotRun)
    assert verdict_on(replace(good, unit="GB/s")).status is Status.UNKNOWN
    assert verdict_on(replace(good, value=float("nan"))).status is Status.UNKNOWN


@pytest.mark.parametrize("has_cuda", [True, False])
def test_gpu_programs_are_asked_where_torch_has_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_cuda: bool
) -> None:
    """A stand-in for the module of GPU programs, and for torch: what a real GPU measures is not run here."""

    def measure(name: str) -> list[tuple[str, float, str, str]]:
        assert name == "gpu_gemm"
        return [
            ("gpu0 NVIDIA H100 80GB HBM3", 500.0, "TFLOP/s", "8192"),
            ("gpu1 NVIDIA H100", 700.0, "TFLOP/s", ""),
        ]

    for name, content in (
        (GPU_PROGRAMS, {"measure": measure}),
        ("torch", {"cuda": SimpleNamespace(is_available=lambda: has_cuda)}),
    ):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("neocloud.fleet.active.run.GPU_DEVICES", ("null",))
    ran = runner(tmp_path).run([named("gpu_gemm")])
    if has_cuda:
        (verdict,) = ran.document.verdicts
        assert (
            verdict.status is Status.FAIL and verdict.sample.startswith("gpu0") and "595" in verdict.threshold
        )
        assert len(ran.measured) == 2
    else:
        assert [each.why for each in ran.document.not_run] == ["There is no GPU that CUDA can use"]
