"""The agent in a container: what it looks at, and how it is asked from elsewhere, as a real process."""

import subprocess

from neocloud.fleet.agent import delivery
from neocloud.fleet.agent.document import decode
from neocloud.testing.waiting import wait_until
from tests.fast.fleet.agent import trees
from tests.fast.fleet.agent.conftest import Bundle, Node
from tests.fast.fleet.agent.test_checks import FAILS
from tests.fast.fleet.agent.trees import write

OF_HOST = ("blocked_task_s", "load_per_cpu", "disk_full", "nvme_not_live", "ib_link_downed", "pcie_degraded")


def test_in_a_container_nothing_is_said_of_the_host_and_its_other_tenants(node: Node) -> None:
    for name in OF_HOST:
        FAILS[name][0](node.root)
    write(node.root, {"dev/kmsg": "3,1,1,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, off the bus"})
    whole = {each.check for each in node.check().verdicts}
    assert {"disk_full", "xid.79", "pcie_degraded"} <= whole, "the host's own agent says it"
    command = node.command("check", "--seconds", "0", "--pod")
    ran = subprocess.run(command, env=node.environment, capture_output=True, check=True, timeout=60)
    said = decode(ran.stdout, host="node-1")
    spoken = {each.check for each in (*said.verdicts, *said.not_run)}
    assert {each.check for each in said.verdicts if each.status != "pass"} == set()
    assert "gpu_missing" in spoken and "mount_missing" in spoken
    assert not {name.partition(".")[0] for name in spoken} & {*OF_HOST, "kernel_log", "xid", "kernel"}


def test_gpus_of_other_containers_are_not_missed(node: Node) -> None:
    """The bus shows all eight; NVML the two that this container has."""
    node.expected = {"gpus": 2, "mounts": ["/jail"]}
    node.gpus("", "")
    command = node.command("check", "--seconds", "0", "--pod")
    ran = subprocess.run(command, env=node.environment, capture_output=True, check=True, timeout=60)
    found = {each.check: each for each in decode(ran.stdout, host="node-1").verdicts}
    assert found["gpu_missing"].sample.startswith("0 (2 answer of 2")
    node.gpus("", "handle 15")
    ran = subprocess.run(command, env=node.environment, capture_output=True, check=True, timeout=60)
    found = {each.check: each for each in decode(ran.stdout, host="node-1").verdicts}
    assert found["gpu_missing"].status == "fail"


def test_an_agent_is_asked_before_it_has_checked_and_killed_and_asked_again(bundle: Bundle) -> None:
    first = bundle.ask()
    assert first.last is None and not first.changes and first.n == 0
    with bundle.watching():
        wait_until(lambda: bundle.ask().last, "it has checked")
    said = bundle.ask(0, first.spool)
    assert said.spool == first.spool and said.n >= 1
    assert {each.check for document in said.changes for each in document.verdicts} >= {"mount_missing"}
    write(bundle.node.root, {"proc/self/mountinfo": trees.MOUNTINFO.replace("/jail", "/gone")})
    with bundle.watching():
        failing = bundle.last / delivery.FAILING
        bundle.ask(said.n, said.spool, trusted="mount_missing")
        wait_until(lambda: "storage problem: mount_missing" in failing.read_text(), "the prolog gets it")
    more = bundle.ask(said.n, said.spool)
    assert more.n > said.n
    told = [(each.check, each.status.value) for document in more.changes for each in document.verdicts]
    assert told == [("mount_missing", "fail")], "after kill -9 nothing is said twice"


def test_the_parts_of_a_pod_are_its_gpus_and_told_when_they_change(bundle: Bundle) -> None:
    """The GPUs are those of the stand-in for NVML; the disks, adapters and serial number of the tree are the
    host's.
    """
    bundle.node.gpus("serial A", "serial B")
    with bundle.watching():
        wait_until(lambda: bundle.ask().inventory, "it has read the parts")
        said = bundle.ask()
        assert said.inventory is not None and said.inventory.simulated
        assert [(each.kind, each.serial) for each in said.inventory.parts] == [("gpu", "A"), ("gpu", "B")]
        assert bundle.ask(inventory=said.inventory_id).inventory is None, "the asker has it"
        bundle.node.gpus("serial A", "serial C")
        wait_until(lambda: bundle.ask(inventory=said.inventory_id).inventory, "it has read others")
    changed = bundle.ask(inventory=said.inventory_id).inventory
    assert changed is not None and [each.serial for each in changed.parts] == ["A", "C"]


def test_a_tenant_who_writes_over_a_file_by_a_link_changes_nothing(bundle: Bundle) -> None:
    """The folders are the agent's alone; a link that is there nevertheless is replaced and not followed."""
    target = bundle.program.parent / "target"
    target.write_text("mine")
    with bundle.watching():
        wait_until(lambda: (bundle.last / delivery.FAILING).exists(), "it has checked")
    (bundle.last / delivery.FAILING).unlink()
    (bundle.last / delivery.FAILING).symlink_to(target)
    with bundle.watching():
        wait_until(lambda: not (bundle.last / delivery.FAILING).is_symlink(), "it has checked again")
    assert target.read_text() == "mine"
