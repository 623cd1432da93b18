"""Metrics of the agent for the textfile collector of a node exporter."""

import math
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from neocloud.fleet.agent import metrics_file
from neocloud.fleet.agent.document import Document
from neocloud.fleet.agent.expected import Expected
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.loop import Agent
from neocloud.fleet.agent.probe_result import Reading
from neocloud.fleet.agent.spool import Spool
from neocloud.fleet.policy.policy_file import default_policy
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.test_checks import InThisProcess

EVIL = 'eth"} 1\nneocloud_node_check{check="gpu_lost\\'


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_an_agent_writes_what_its_checks_say(tmp_path: Path) -> None:
    root, file = tmp_path / "root", tmp_path / "neocloud.prom"
    trees.h100_node(root)
    spool = Spool(tmp_path / "spool", 1 << 20)
    agent = Agent(
        *(Tree(root), default_policy(), Expected(), tmp_path / "spool", spool),
        host="node-1",
        now=lambda: 5000.0,
        children=InThisProcess(),
        metrics_file=file,
    )
    agent.step(0)
    found = samples(file.read_text())
    said = {name for name, each in agent.checks.said.items() if hasattr(each.answer, "status")}
    assert {key[1] for key in found if key[0] == "neocloud_node_check"} == said
    assert found["neocloud_node_simulated",] == 1, "a tree is no host"
    ports = [key for key in found if key[:2] == ("neocloud_node_reading", "ib_link_downed")]
    assert ports and file.stat().st_mode & 0o777 == 0o644
    spool.close()


def test_a_file_that_cannot_be_written_ends_no_agent(tmp_path: Path) -> None:
    root = tmp_path / "root"
    trees.h100_node(root)
    spool = Spool(tmp_path / "spool", 1 << 20)
    agent = Agent(
        *(Tree(root), default_policy(), Expected(), tmp_path / "spool", spool),
        host="node-1",
        now=lambda: 5000.0,
        children=InThisProcess(),
        metrics_file=tmp_path / "missing" / "file.prom",
    )
    agent.step(0)
    assert agent.checks.said
    spool.close()


def test_names_of_devices_make_no_series(tmp_path: Path) -> None:
    readings = [
        Reading("carrier_changes", EVIL, 4.0),
        Reading("carrier_changes", "x" * 10_000, 5.0),
        Reading("carrier_changes", "nan", math.nan),
        *(Reading("disk_used", f"/mnt/{number}", 1.0) for number in range(10_000)),
    ]
    document = Document("node-1", "boot", 1.0, 2.0)
    text = "\n".join(metrics_file.lines(document, readings)) + "\n"
    found = samples(text)
    assert found["neocloud_node_reading", "carrier_changes", EVIL] == 4.0
    assert not [key for key in found if key[0] == "neocloud_node_check"]
    assert max(len(key[-1]) for key in found) <= metrics_file.LONGEST_LABEL
    assert len(found) <= metrics_file.MOST_SERIES + 8
