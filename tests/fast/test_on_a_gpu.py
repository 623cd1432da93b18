"""scripts/on-a-gpu: what it runs where, its time limits, and what it says of parts that it cannot run.

The parts that a CPU can run are run for real by `tests/long/test_on_a_gpu.py`.
"""

import json
import stat
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from neocloud.testing.waiting import wait_until
from tests import ROOT

SCRIPT = ROOT / "scripts" / "on-a-gpu"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = spec_from_loader("on_a_gpu", SourceFileLoader("on_a_gpu", str(SCRIPT)))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "on_a_gpu", module)  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def put_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def python(*lines: str) -> list[str]:
    return [sys.executable, "-c", "\n".join(lines)]


def part(script: ModuleType, name: str, command: list[str], needs: tuple[str, ...] = (), seconds: float = 20):
    return script.Part(name, name, needs, seconds, lambda device: command)


def test_without_a_gpu_everything_is_not_run_and_that_is_no_failure(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(script, "run_part", lambda *_: pytest.fail("nothing may run"))
    output = tmp_path / "found.json"
    assert script.main(["--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert found["gpu"] is None
    assert {each["state"] for each in found["parts"]} == {"not_run"}
    assert all("no NVIDIA GPU" in each["reason"] for each in found["parts"])
    shown = capsys.readouterr().out
    assert all(each.name in shown for each in script.PART_LIST)
    assert sum(each.seconds for each in script.PART_LIST) <= script.MOST_SECONDS < 600


def test_a_gpu_without_packages_runs_what_needs_none(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, "echo NVIDIA H200")
    gpu = script.gpu_name()
    assert gpu == "NVIDIA H200"
    reasons = {
        each.name: script.reason_against(each, "cuda", gpu, lambda name: False) for each in script.PART_LIST
    }
    assert reasons["machine"] == ""
    assert reasons["node_checks"] == "not installed: torch"
    assert reasons["lora_4bit"].endswith("bitsandbytes") and "vllm" in reasons["adapters"]


@pytest.mark.parametrize("text", ["exit 9", "true", "echo 'no devices were found' >&2; exit 6"])
def test_a_driver_that_lists_no_gpu_is_none(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, text)
    assert script.gpu_name() == ""


def test_a_part_ends_with_its_children_at_its_limit(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "KILL_SECONDS", 0.2)
    mark = tmp_path / "pid"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {_waits(mark)!r}])"
    found = script.run_part(python("print('begun', flush=True)", child), 2.0, "slow")
    assert found.state == "timed_out" and found.seconds < 15
    assert "longer than 2 s; begun" in found.reason
    pid = int(mark.read_text())
    wait_until(lambda: not _runs(pid), "the child of the part has ended")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _waits(mark: Path) -> str:
    return (
        f"import os, signal, pathlib; pathlib.Path({str(mark)!r}).write_text(str(os.getpid()));"
        " signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause(); signal.pause()"
    )


def test_figures_are_the_last_line_of_a_part_and_others_fail_it(script: ModuleType) -> None:
    good = script.run_part(python("print('noise')", "print('RESULT {\"tflops\": 494.7}')"), 20, "good")
    assert (good.state, good.figures) == ("done", {"tflops": 494.7})
    script.add_mfu(good, "NVIDIA H200")
    assert good.figures["mfu"] == pytest.approx(0.5)
    unknown = script.Outcome("x", "done", figures={"tflops": 1.0})
    script.add_mfu(unknown, "NVIDIA H20")
    assert unknown.figures["mfu"] is None and "no peak is known" in unknown.figures["mfu_reason"]
    silent = script.run_part(python("print('hello')"), 20, "silent")
    assert (silent.state, silent.reason) == ("failed", "exit code 0: hello")
    broken = script.run_part(python("raise SystemExit('CUDA out of memory')"), 20, "broken")
    assert broken.state == "failed" and "CUDA out of memory" in broken.reason
    refused = script.run_part(
        python('print(\'RESULT {"state": "not_run", "reason": "no GPU"}\')'), 20, "late"
    )
    assert (refused.state, refused.reason) == ("not_run", "no GPU")


def test_one_failure_stops_no_other_part_and_shows_in_the_exit_code(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, "echo NVIDIA H100 80GB HBM3")
    parts = [
        part(script, "bad", python("raise SystemExit(3)")),
        part(script, "good", python("print('RESULT {}')")),
    ]
    monkeypatch.setattr(script, "PART_LIST", parts)
    output = tmp_path / "found.json"
    assert script.main(["--output", str(output)]) == 1
    assert [each["state"] for each in json.loads(output.read_text())["parts"]] == ["failed", "done"]


def test_parts_for_which_no_time_is_left_are_not_run(script: ModuleType) -> None:
    late = part(script, "late", python("print('RESULT {}')"), seconds=60)
    (found,) = script.run_all([late], "cpu", "", lambda name: True, most=5.0)
    assert found.state == "not_run" and "the parts before it took" in found.reason
