"""GPU figures of a job's report, from a store of metrics, and the figures that it leaves out."""

import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from neocloud.fleet.nodes.gpu_use import PEAKS, model_label, peak_tflops
from neocloud.services.monitoring.public import Sample
from neocloud.services.slurm.accounting import JobRun, node_names
from neocloud.services.slurm.api.gpu_report import Gpu, gpu_use, summary

H100 = "NVIDIA H100 80GB HBM3"
MEANS = {"utilisation": 90.0, "tensor_active": 0.5, "power": 600.0}


def gpu(model: str = H100, coverage: float = 1.0, **means: float) -> Gpu:
    return Gpu(model, coverage, {**MEANS, **means})


def test_means_estimate_and_energy_of_all_its_gpus() -> None:
    use = summary([gpu(), gpu(tensor_active=0.3, power=400.0, utilisation=70.0)], 2, 3600.0)
    assert (use.gpus, use.utilisation_percent, use.tensor_active) == (2, 80.0, 0.4)
    assert use.estimated_tflops == pytest.approx(0.5 * 989 + 0.3 * 989) and use.peak_tflops == 2 * 989
    assert use.energy_joules == 1000.0 * 3600 and not use.not_known and not use.is_simulated


def test_a_mean_of_0_is_told_as_one() -> None:
    use = summary([gpu(tensor_active=0.0)], 1, 60.0)
    assert use.HasField("tensor_active") and use.HasField("estimated_tflops") and not use.estimated_tflops


def test_without_readings_nothing_is_said_but_why() -> None:
    use = summary([], 8, 60.0)
    assert "no readings" in use.not_known[0]
    assert not any(use.HasField(each) for each in ("utilisation_percent", "tensor_active", "energy_joules"))


def test_a_job_with_a_part_of_the_gpus_of_a_node_gets_no_figures_of_others() -> None:
    use = summary([gpu()] * 8, 2, 60.0)
    assert "2 of the 8 GPUs" in use.not_known[0] and not use.HasField("utilisation_percent")


@pytest.mark.parametrize(
    ("found", "had", "absent", "why"),
    [
        ([Gpu(H100, 1.0, {"utilisation": 90.0, "power": 600.0})], 1, "tensor_active", "do not tell it"),
        ([gpu(), Gpu(H100, 1.0, {"power": 600.0})], 2, "tensor_active", "do not tell it"),
        ([gpu("other")], 1, "estimated_tflops", "peak of a GPU's model is not known"),
        ([gpu()], 2, "estimated_tflops", "not all of its GPUs"),
        ([gpu()], 2, "energy_joules", "not all of its GPUs"),
        ([Gpu(H100, 1.0, {"utilisation": 90.0})], 1, "energy_joules", "readings of power"),
        ([gpu(coverage=0.5)], 1, "energy_joules", "cover 50% of its time"),
    ],
)
def test_what_is_not_known_is_absent_with_the_reason(
    found: Sequence[Gpu], had: int, absent: str, why: str
) -> None:
    use = summary(found, had, 60.0)
    assert not use.HasField(absent) and any(why in each for each in use.not_known)


def test_peaks_are_of_models_by_nvml_and_have_a_source() -> None:
    assert peak_tflops(H100) == 989 and peak_tflops("NVIDIA H100 PCIe") == 756
    assert peak_tflops("Tesla T4") is None and model_label('x"} 1') == "other"
    assert all(each.source and each.tflops > 0 for each in PEAKS)
    assert len({each.model for each in PEAKS}) == len(PEAKS)


@dataclass
class Metrics:
    """Implements `MetricsReader`."""

    asked: list[str] = field(default_factory=list[str])

    async def query(self, project_id: str, expression: str, at: float) -> Sequence[Sample]:
        self.asked.append(expression)
        return []


def run(nodes: str) -> JobRun:
    start, end = (datetime.fromtimestamp(at, UTC) for at in (1000, 4600))
    return JobRun("COMPLETED", nodes, start, end, 1, 1, 8, [])


async def test_a_name_of_a_node_adds_nothing_to_a_query() -> None:
    """Slurm's database is in the tenant's cluster."""
    metrics = Metrics()
    for nodes in ('w"} or up{x="', "w|.*", "worker-[0-1]x", "worker-[a]", "worker-[", "[0-3]", "a b", "w\n"):
        use = await gpu_use(metrics, "project-a", "c", run(nodes), 5000.0)
        assert use.not_known and not metrics.asked, nodes
    await gpu_use(metrics, "project-a", "c", run("worker-[0-1],gpu.a"), 5000.0)
    assert all(r'node=~"worker-0|worker-1|gpu\\.a"' in each for each in metrics.asked)


def test_names_in_slurms_list_are_expanded_up_to_a_limit() -> None:
    assert node_names("worker-[0-2,7],login", 10) == ["worker-0", "worker-1", "worker-2", "worker-7", "login"]
    assert node_names("w[08-11]", 10) == ["w08", "w09", "w10", "w11"]
    assert node_names("", 10) == []
    assert len(node_names("w[0-999999999999]", 10)) == 10
    many = f"w[{','.join(['0-999999999999'] * 50_000)}]"
    tracemalloc.start()
    assert len(node_names(many, 1000)) == 1000
    assert tracemalloc.get_traced_memory()[1] < 100 << 20, "one list of many spans is not expanded whole"
    tracemalloc.stop()
    for bad in ("w[1-", "w[]", "w[1--2]", "w[-]", "w]"):
        with pytest.raises(ValueError):
            node_names(bad, 10)
