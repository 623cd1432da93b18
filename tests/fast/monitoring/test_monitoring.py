"""The dashboards and alerts of monitoring/: generated, and each expression run in the real store.

GPUs are `simulated`: series with the names of NVIDIA's exporter and made-up values. Grafana is `not_run`.
"""

import json
import re
import runpy
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from neocloud.engines.base import Reference
from neocloud.fleet.agent.document import Document
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host import HostChecks, Memory
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.metrics_file import lines
from neocloud.fleet.agent.probe_result import Reading
from neocloud.fleet.nodes.events import Status
from neocloud.fleet.nodes.gpu_use import PEAKS, tflops_expression
from neocloud.fleet.policy.policy_file import default_policy
from neocloud.model_gateway.metering.usage import TokenUsage
from neocloud.model_gateway.routing.traffic import Metrics
from tests import ROOT
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.test_checks import InThisProcess
from tests.fast.monitoring.cloud import measured_cloud
from tests.fast.monitoring.conftest import Store

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "write-monitoring"), run_name="script")
DESCRIPTION = yaml.safe_load((ROOT / "monitoring" / "description.yaml").read_text())
ALERTS = {each["name"]: each for each in DESCRIPTION["alerts"]}
STEP_SECONDS, SPAN_SECONDS = 15, 600
GPU = 'cluster="C",node="worker-0",gpu="0",modelName="NVIDIA H100 80GB HBM3"'
SIMULATED_GPUS = {
    **{f"DCGM_FI_DEV_{name}": value for name, value in (("GPU_UTIL", 97), ("FB_USED", 70_000))},
    **{f"DCGM_FI_DEV_{name}": value for name, value in (("MEM_COPY_UTIL", 40), ("SM_CLOCK", 1980))},
    **{f"DCGM_FI_DEV_{name}": value for name, value in (("MEM_CLOCK", 2619), ("GPU_TEMP", 60))},
    **{f"DCGM_FI_DEV_{name}": value for name, value in (("POWER_USAGE", 640), ("XID_ERRORS", 79))},
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.5,
}
SIMULATED_READINGS = (Reading("gpu_missing", "", 0.0), Reading("thermal_margin", "gpu 0", 30.0))
OF_THE_STORE = {"up"}
COUNTED = ("_total", "_bucket", "_count", "_sum")
"""Endings of series that grow."""
_NAME = re.compile(r"\b(?:neocloud|DCGM|process)_[A-Za-z0-9_]+|\bup(?=\{)")


def expressions() -> Iterable[tuple[str, str]]:
    """Yield every expression of the generated dashboards, with its place."""
    for file in sorted((ROOT / "monitoring" / "dashboards").glob("*.json")):
        document = json.loads(file.read_text())
        for panel in document["panels"]:
            for target in panel["targets"]:
                yield f"{file.stem}: {panel['title']}", target["expr"]
        for each in document["annotations"]["list"]:
            yield f"{file.stem}: {each['name']}", each["expr"]


def history(series: Mapping[str, tuple[float, float]], until: float) -> str:
    """Return samples of these series, from their first value to their last, as the store imports them."""
    count = SPAN_SECONDS // STEP_SECONDS
    written: list[str] = []
    for name, (first, last) in series.items():
        for index in range(count + 1):
            at = int((until - (count - index) * STEP_SECONDS) * 1000)
            written.append(f"{name} {first + (last - first) * index / count} {at}\n")
    return "".join(written)


def series_of(text: str, **more: str) -> dict[str, tuple[float, float]]:
    found: dict[str, tuple[float, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={json.dumps(at)}" for name, at in {**sample.labels, **more}.items())
            first = 0.0 if sample.name.endswith(COUNTED) else sample.value
            found[f"{sample.name}{{{labels}}}"] = (first, sample.value)
    return found


def test_the_files_are_what_the_description_says() -> None:
    assert SCRIPT["main"](["--check"]) == 0


def test_each_alert_says_what_to_look_at() -> None:
    assert len(ALERTS) == len(DESCRIPTION["alerts"])
    for each in ALERTS.values():
        assert each["severity"] in ("warning", "critical") and each["summary"].endswith((".", "}}."))
        assert re.fullmatch(r"\d+m", each["for"])


async def pages(tmp_path: Path) -> tuple[dict[str, tuple[float, float]], set[str]]:
    """Return the series of a cloud, of an agent and of a gateway, and the names that they have."""
    async with measured_cloud(tmp_path) as cloud:
        cluster = await cloud.watched_cluster(2, 0)
        labels = f'cluster="{cluster}",cluster_name="bank"'
        phase = f'{labels},node="worker-0",phase="in_service",project="{cloud.project_id}"'
        await cloud.sample_appears(f"neocloud_fleet_node_phase{{{phase}}} 1.0")
        cloud.slurm.figures["worker-1"] = {"cpus": 0.5}  # so that a check fails when it is back
        cloud.engine.kill(Reference("Pod", cluster, "worker-1"))
        pool = f'{labels},node_set="worker",project="{cloud.project_id}"'
        await cloud.sample_appears(f"neocloud_fleet_incidents_total{{{pool}}} 1.0")
        await cloud.call("neocloud.slurm.v1.ClusterService/List", parent_id=cloud.project_id)
        page = await cloud.sample_appears(f'neocloud_fleet_checks{{check="cpu",{pool},status="fail"}} 1.0')
    agent, gateway = "\n".join(agent_lines(tmp_path)) + "\n", gateway_text()
    names = {
        line.split()[2] + suffix
        for line in f"{page}{agent}{gateway}".splitlines()
        if line.startswith("# TYPE")
        for suffix in ("", *COUNTED[1:])
    }
    found = series_of(page, job="control-plane") | series_of(agent, instance="node-1") | series_of(gateway)
    found |= {f"{name}{{{GPU.replace('C', cluster, 1)}}}": (at, at) for name, at in SIMULATED_GPUS.items()}
    worker = f'{labels},project="{cloud.project_id}",node="worker-0"'
    found[f'neocloud_fleet_node_job{{{worker},job="7"}}'] = (1, 1)  # a fake Slurm runs none
    found[f"neocloud_fleet_node_gpus_simulated{{{worker}}}"] = (1, 1)  # nor does its worker have GPUs
    drains = next(each for each in found if each.startswith("neocloud_fleet_incidents_total"))
    found[drains] = (0, 40)  # during the ten minutes, so that the annotation finds one in the last
    return found, names


def agent_lines(tmp_path: Path) -> Iterable[str]:
    trees.h100_node(tmp_path / "root")
    checks = HostChecks(
        *(Tree(tmp_path / "root"), default_policy(), Expected(), Memory("boot")),
        now=lambda: 5000.0,
        children=InThisProcess(),
    )
    checks.run()
    document: Document = checks.document("node-1")
    failed = replace(document.verdicts[0], status=Status.FAIL)
    return lines(
        replace(document, verdicts=[failed, *document.verdicts[1:]]), [*checks.readings, *SIMULATED_READINGS]
    )


def gateway_text() -> str:
    gateway = Metrics(lambda: 2)
    gateway.answered("bank", "/v1/chat/completions", 200, 0.1, 0.5)
    gateway.used("bank", TokenUsage(10, 5, 3))
    return gateway.text().decode()


async def test_each_expression_of_the_dashboards_finds_something(store: Store, tmp_path: Path) -> None:
    series, names = await pages(tmp_path)
    await store.add(history(series, time.time()))
    known = names | SIMULATED_GPUS.keys() | OF_THE_STORE
    empty: list[str] = []
    for place, expression in expressions():
        assert set(_NAME.findall(expression)) <= known, f"{place}: {expression}"
        if not await store.query(expression):
            empty.append(f"{place}: {expression}")
    assert not empty
    (found,) = await store.query(dict(expressions())["job: TFLOP/s of each job (estimate)"])
    assert float(found["value"][1]) == pytest.approx(0.5 * 989) and found["metric"]["job"] == "7"


async def test_the_estimate_of_a_gpu_has_the_peak_of_its_model_and_counts_it_once(store: Store) -> None:
    """A GPU that its node's agent and a dcgm-exporter report counts once; another model has no estimate."""
    told = [(each.model, each.tflops) for each in PEAKS] + [("Tesla T4", 0.0)]
    series: dict[str, tuple[float, float]] = {}
    for number, (model, _) in enumerate(told):
        labels = f'cluster="c",node="w",gpu="{number}",modelName="{model}"'
        for exporter in ("", ',Hostname="w",UUID="GPU-1"'):
            series[f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{labels}{exporter}}}"] = (0.5, 0.5)
    await store.add(history(series, time.time()))
    found = {
        int(each["metric"]["gpu"]): float(each["value"][1]) for each in await store.query(tflops_expression())
    }
    assert found == {number: 0.5 * tflops for number, (_, tflops) in enumerate(told) if tflops}


async def test_each_alert_fires_when_it_should_and_only_then(store: Store, tmp_path: Path) -> None:
    """OBS-07: an alert joins a job's loss of TFLOP/s with the failing checks of its nodes."""
    _, names = await pages(tmp_path)
    rules = yaml.safe_load((ROOT / "monitoring" / "alerts.yml").read_text())["groups"][0]["rules"]
    now = time.time()
    for rule in rules:
        name, expression = rule["alert"], rule["expr"]
        assert set(_NAME.findall(expression)) <= names | SIMULATED_GPUS.keys() | OF_THE_STORE, name
        for case in ("fires", "quiet"):
            series: dict[str, tuple[float, float]] = {}
            for line in ALERTS[name][case]:
                metric, *values = re.split(r" (?=[0-9.]+(?: |$))", line)
                series[metric] = (float(values[0]), float(values[-1]))
            await store.add_as(f"{name}-{case}", history(series, now))
    wrong: list[str] = []
    for rule in rules:
        for case, is_expected in (("fires", True), ("quiet", False)):
            found = await store.query_as(f"{rule['alert']}-{case}", rule["expr"])
            if bool(found) is not is_expected:
                wrong.append(f"{rule['alert']} {case}: {found}")
    assert not wrong
