"""`neo slurm job report`: what a job got and used, with what its GPUs did and what is not known."""

import json
from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, cluster, serve_clusters

REPORT = "neocloud.slurm.v1.JobService/Report"
USE = {
    **{"gpus": "16", "coverage": 1.0, "utilisation_percent": 93.4, "tensor_active": 0.41},
    **{"estimated_tflops": 6487.84, "peak_tflops": 15824.0, "energy_joules": 36e6},
}
EVENT = {"node": "worker-1", "at": "2026-11-01T10:30:00Z", "text": "the check gpu_lost fails"}


def serve(cloud: FakeServer, use: dict[str, Any] | None, **more: Any) -> None:
    run = {
        **{"state": "COMPLETED", "nodes": "worker-[0-1]", "cpus": "4", "gpus": "16", "memory_bytes": "1024"},
        **{"started_at": "2026-11-01T10:00:00Z", "finished_at": "2026-11-01T11:00:00Z"},
    }
    job = {"id": "7", "name": "train", "user": "root", "state": "COMPLETED"}
    job["submitted_at"] = run["started_at"]
    report = {"job": job, "runs": [run | ({"gpu_use": use} if use is not None else {})], **more}
    serve_clusters(cloud, cluster("bank"))
    cloud.serve(REPORT, contract.from_dict(contract.method(REPORT).output, report))


def lines(text: str) -> dict[str, str]:
    rows = (line.strip().split("  ", 1) for line in text.splitlines())
    return {row[0]: row[1].strip() for row in rows if len(row) == 2}


def test_it_shows_what_gpus_did_and_what_happened_to_the_nodes(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud, USE, node_events=[EVENT])
    out = signed_in("slurm", "job", "report", "bank", "7").out
    shown = lines(out)
    assert shown["GPU utilisation"] == "93% on average"
    assert shown["Tensor cores"] == "active in 41% of cycles"
    assert shown["TFLOP/s"] == "6,488 estimated, 41% of the dense BF16 peak of 15,824"
    assert shown["GPU energy"] == "10 kWh"
    assert "Not known" not in out
    assert "2026-11-01 10:30:00   worker-1   the check gpu_lost fails" in out


def test_it_says_what_is_not_known_and_shows_no_0_for_it(signed_in: Neo, cloud: FakeServer) -> None:
    why = "tensor activity and TFLOP/s: GPUs do not tell it"
    use = {
        "gpus": "16",
        "coverage": 0.5,
        "utilisation_percent": 0.0,
        "is_simulated": True,
        "not_known": [why],
    }
    serve(cloud, use, not_known=["events of its nodes: nobody watches the nodes"])
    out = signed_in("slurm", "job", "report", "bank", "7").out
    assert lines(out)["GPU utilisation"] == "0% on average, in 50% of the time, simulated"
    assert why in out and "events of its nodes: nobody watches" in out
    assert not any(each in lines(out) for each in ("Tensor cores", "TFLOP/s", "GPU energy"))


def test_a_job_without_gpus_has_no_lines_of_them(signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud, None)
    out = signed_in("slurm", "job", "report", "bank", "7").out
    assert "GPU u" not in out and "Not known" not in out
    assert "Memory" not in lines(out), "no step has a sample of it"


@pytest.mark.parametrize("name", ["tensor_active", "estimated_tflops", "energy_joules"])
def test_in_json_what_is_not_known_is_absent(name: str, signed_in: Neo, cloud: FakeServer) -> None:
    serve(cloud, {key: value for key, value in USE.items() if key != name})
    run = json.loads(signed_in("slurm", "job", "report", "bank", "7", "--output", "json").out)["runs"][0]
    assert name not in run["gpu_use"] and "utilisation_percent" in run["gpu_use"]
