"""DCGM's diagnostics, by what real ones printed; a GPU is not needed to read it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from neocloud.fleet.active import dcgm
from neocloud.fleet.active.catalogue import named
from neocloud.fleet.active.run import Runner
from neocloud.fleet.nodes.events import Status

# From "JsonResult: Deserialize real output" in the tests of NVIDIA/DCGM, release 3.1, shortened to three.
VERSION_3 = """
    WARNING: THIS SHOULD NOT HAPPEN
    {"DCGM GPU Diagnostic": {"test_categories": [
      {"category": "Deployment", "tests": [
        {"name": "Denylist", "results": [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}]}, null,
        {"name": "NVML Library", "results": [{"gpu_ids": "0,1,2,3,4,5,6,7", "status": "PASS"}]}]},
      {"category": "Custom", "tests": [
        {"name": "software", "results": [
          {"gpu_ids": 0, "status": "PASS"}, {"gpu_ids": 1, "status": "PASS"}]}]}],
      "version": "3.1.0"}}
"""


def version_4(severity: int = 5, status: str = "Fail") -> dict[str, Any]:
    """Return a report as captured on a node of eight GPUs without persistence mode, in August 2026, which a
    public repository has in its tests; the keys are those that NVIDIA's own tests of DCGM 4 read.
    """
    text = "Persistence Mode: Persistence mode for GPU {} is disabled."
    results = [
        {
            "entity_group": "GPU",
            "entity_id": gpu,
            "status": status,
            "warnings": [
                {
                    "error_category": 8,
                    "error_id": 29,
                    "error_severity": severity,
                    "warning": text.format(gpu),
                }
            ],
        }
        for gpu in range(8)
    ]
    tests = [{"name": "software", "results": results}]
    return {"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}}


def encoded(given: object) -> bytes:
    return json.dumps(given).encode()


def test_what_dcgm_3_printed_passes_and_a_failed_test_of_it_is_named() -> None:
    assert dcgm.read(VERSION_3.encode()) == ([], 4, [])
    broken = VERSION_3.replace('{"gpu_ids": 1, "status": "PASS"}', '{"gpu_ids": 1, "status": "FAIL"}')
    assert dcgm.read(broken.encode()) == (["software of 1"], 3, [])


def test_a_setting_of_the_host_is_no_failed_test_and_no_pass() -> None:
    with pytest.raises(ValueError, match="software of 0: a setting of the host"):
        dcgm.read(encoded(version_4()))
    failed, passed, settings = dcgm.read(encoded(version_4(severity=2)))
    assert failed == [f"software of {gpu}" for gpu in range(8)] and not passed and not settings


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"Error: unable to establish a connection to the specified host: localhost\n",
        b"{}",
        b"[" * 100_000,
        encoded({"DCGM Diagnostic": {"test_categories": [None, {"tests": 7}, {"tests": [{"results": {}}]}]}}),
        encoded(version_4(status="Skip")),
        encoded({"DCGM Diagnostic": []}),
    ],
)
def test_what_tells_of_no_test_is_no_pass(output: bytes) -> None:
    with pytest.raises(ValueError, match="dcgmi"):
        dcgm.read(output)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr("neocloud.fleet.active.run.GPU_DEVICES", ("null",))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Runner(host="n", folder=tmp_path, stop=lambda: "", boot="b")


def test_without_dcgm_it_is_not_run(runner: Runner) -> None:
    (left_out,) = runner.run([named("dcgm_diag")]).document.not_run
    assert left_out.why == "dcgmi is not installed; it comes with DCGM"


def test_the_program_is_started_and_a_node_without_a_gpu_needs_none(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for dcgmi that prints the real output."""
    program = tmp_path / "dcgmi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'diag -r 3 -j' ] && cat <<'END'\n{VERSION_3}\nEND\n")
    program.chmod(0o755)
    (verdict,) = runner.run([named("dcgm_diag")]).document.verdicts
    assert verdict.status is Status.PASS and "4 passed" in verdict.sample
    program.write_text("#!/bin/sh\necho 'no host engine' >&2; exit 1\n")
    (verdict,) = runner.run([named("dcgm_diag")]).document.verdicts
    assert verdict.status is Status.UNKNOWN and "no host engine" in verdict.sample
    monkeypatch.setattr("neocloud.fleet.active.run.GPU_DEVICES", ())
    (left_out,) = runner.run([named("dcgm_diag")]).document.not_run
    assert left_out.why == "There is no GPU here"


def test_beside_jobs_alone_as_a_job_could_not_end_it(runner: Runner) -> None:
    runner.gives_way = True
    (left_out,) = runner.run([named("dcgm_diag")]).document.not_run
    assert "keeps running where a job ends dcgmi" in left_out.why
