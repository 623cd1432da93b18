"""Parts of nodes: their history follows them, and who lies about one takes nothing from others."""

from collections.abc import Sequence

import pytest

from neocloud.fleet.control.controller import Fleet, decide
from neocloud.fleet.nodes import events as e
from neocloud.fleet.nodes.event_json import decode, encode
from neocloud.fleet.nodes.events import OURS, Event, Phase, Status
from neocloud.fleet.nodes.part_history import MOST_GONE
from neocloud.fleet.nodes.parts import HostPart, Reader, named
from neocloud.fleet.policy.limits import DAY, Limits

LIMITS = Limits(trusted=frozenset({"gpu_lost"}), smallest_cluster_limit=50)
KEY = ("gpu", "BAD")


def gpu(serial: str, slot: str = "0000:18:00.0", firmware: str = "96.00") -> HostPart:
    return HostPart("gpu", slot, "NVIDIA H100", serial, firmware)


class Nodes:
    """A fleet of nodes with a GPU each, `a0` with the serial number BAD, and its log."""

    def __init__(self, count: int = 40, reader: Reader = Reader.POD) -> None:
        self.fleet, self.log, self.now, self.reader = Fleet(LIMITS, 0), list[Event](), 0.0, reader
        for number in range(count):
            self.add(e.Registered(0.0, f"a{number}", "r", "l", Phase.DRAINED))
            self.add(e.Booted(0.0, f"a{number}", "boot"))
            self.has(f"a{number}", gpu("BAD" if not number else f"S{number}"))

    def add(self, event: Event) -> bool:
        self.log.append(event)
        return self.fleet.apply(event)

    def has(
        self, node: str, *parts: HostPart, is_complete: bool = True, reader: Reader | None = None
    ) -> bool:
        self.now += 60.0
        return self.add(e.InventoryChanged(self.now, node, reader or self.reader, parts, is_complete))

    def fails(self, node: str, devices: str = "0000:18:00.0", status: Status = Status.FAIL) -> str:
        """Have a node drained for its GPU and returned: verified, without another part."""
        self.now += DAY
        verdict = f"v{self.now:.0f}"
        boot = self.fleet.nodes[node].boot
        self.add(
            e.Verdict(
                *(self.now, node, verdict, "gpu_lost", status, boot, "1", "over 0", "x", "1"),
                devices=devices,
            )
        )
        self.add(e.DrainRequested(self.now, node, OURS, verdict, "gpu_lost"))
        attempt = self.fleet.nodes[node].attempts + 1
        self.add(e.Verdict(self.now + 1, node, "p", "gpu_lost", Status.PASS, boot, "0", "over 0", "x", "1"))
        self.add(e.VerificationStarted(self.now + 2, node, e.Suite.FULL, attempt, self.now + 99))
        self.add(e.VerificationEnded(self.now + 3, node, attempt, passed=True, valid_until=self.now + 9e9))
        assert not self.fleet.nodes[node].is_drained_by_us
        return verdict

    def failures(self, serial: str = "BAD") -> int:
        return self.fleet.parts.records["gpu", serial].failures

    def nodes_of(self, serial: str) -> list[str]:
        return [each.node for each in self.fleet.parts.records["gpu", serial].open_places]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_a_part_that_moves_takes_its_failures_along_and_is_a_lemon_there(nodes: Nodes) -> None:
    """Two failures in one node, two in the next: each node alone has had too few to be a lemon."""
    for _ in range(2):
        nodes.fails("a0")
    nodes.has("a0", gpu("NEW"))
    nodes.has("a1", gpu("BAD"))
    for _ in range(2):
        nodes.fails("a1")
    assert nodes.failures() == 4 and nodes.failures("NEW") == 0
    state = nodes.fleet.nodes["a1"]
    why = nodes.fleet.parts.reason(state, nodes.now)
    assert why.startswith("lemon: gpu BAD, in 2 nodes so far, failed 4 times"), why
    assert not nodes.fleet.parts.reason(nodes.fleet.nodes["a0"], nodes.now), "its new part is innocent"
    assert not nodes.fleet.lemons.reason("a0", nodes.now) and not nodes.fleet.lemons.reason("a1", nodes.now)


def test_a_drained_node_with_a_lemon_goes_to_people(nodes: Nodes) -> None:
    for _ in range(6):
        nodes.fails("a0")
    nodes.has("a0", gpu("NEW"))
    nodes.has("a2", gpu("BAD"))
    nodes.now += 60
    nodes.add(
        e.Verdict(
            *(nodes.now, "a2", "last", "gpu_lost", Status.FAIL, "boot", "1", "over 0", "x", "1"),
            devices="0000:18:00.0",
        )
    )
    nodes.add(e.DrainRequested(nodes.now, "a2", OURS, "last", "gpu_lost"))
    (moved,) = [each for each in decide(nodes.fleet, nodes.now).decisions if each.event.node == "a2"]
    assert isinstance(moved.event, e.Moved) and moved.event.to is Phase.TRIAGE
    assert "gpu BAD" in moved.why


def test_two_nodes_with_one_serial_number_are_both_shown_and_nothing_is_done(nodes: Nodes) -> None:
    before = nodes.fleet.nodes["a0"].phase, nodes.fleet.nodes["a9"].phase
    nodes.has("a9", gpu("BAD"))
    assert nodes.nodes_of("BAD") == ["a0", "a9"]
    assert [each.serial for each in nodes.fleet.parts.shared()] == ["BAD"]
    assert (nodes.fleet.nodes["a0"].phase, nodes.fleet.nodes["a9"].phase) == before
    assert not nodes.fleet.drained_by_us
    nodes.has("a0", gpu("NEW"))
    assert not list(nodes.fleet.parts.shared()), "it had moved"


def test_a_liar_neither_takes_nor_adds_to_the_history_of_a_part_of_another(nodes: Nodes) -> None:
    """a9 says that it has the part of a0, and then fails again and again."""
    for _ in range(4):
        nodes.fails("a0")
    nodes.has("a9", gpu("BAD"))
    for _ in range(5):
        nodes.fails("a9")
    assert nodes.failures() == 4, "it is not trusted for the part"
    assert nodes.fleet.lemons.records["a9"].failures == 5, "and its own record has each of them"
    assert nodes.fleet.parts.records[KEY].holder.node == "a0"  # type: ignore[union-attr]
    assert not nodes.fleet.parts.reason(nodes.fleet.nodes["a9"], nodes.now)


def test_a_liar_does_not_hide_its_own_history(nodes: Nodes) -> None:
    """Whatever it says that it has, the node's failures stay, and the part has its own when it is back."""
    for _ in range(4):
        nodes.fails("a0")
    for number in range(2 * MOST_GONE):
        nodes.has("a0", gpu(f"FORGED-{number}"))
    nodes.fails("a0", devices="")
    assert nodes.fleet.lemons.records["a0"].failures == 5
    assert nodes.failures() == 4, "parts that failed are not pushed out"
    assert len(nodes.fleet.parts.records) <= MOST_GONE + 42
    nodes.has("a0", gpu("BAD"))
    assert nodes.fleet.parts.reason(nodes.fleet.nodes["a0"], nodes.now)


def test_the_agent_of_a_pod_says_nothing_against_the_host_that_read_its_own_parts() -> None:
    nodes = Nodes(reader=Reader.HOST)
    assert not nodes.has("a0", gpu("FORGED"), reader=Reader.POD)
    assert nodes.nodes_of("BAD") == ["a0"]
    nodes.has("b0") if nodes.add(e.Registered(0.0, "b0", "r", "l")) else None
    nodes.has("b0", gpu("S3"), reader=Reader.POD)
    assert nodes.fleet.parts.records["gpu", "S3"].holder.node == "a3"  # type: ignore[union-attr]


def test_a_host_outranks_a_pod_that_claimed_the_part_first(nodes: Nodes) -> None:
    nodes.add(e.Registered(0.0, "host", "r", "l"))
    nodes.has("host", gpu("BAD"), reader=Reader.HOST)
    assert nodes.fleet.parts.records[KEY].holder.node == "host"  # type: ignore[union-attr]


def test_a_node_with_another_name_has_the_history_of_its_parts(nodes: Nodes) -> None:
    for _ in range(3):
        nodes.fails("a0")
    nodes.has("a0", reader=Reader.CLOUD)
    assert nodes.nodes_of("BAD") == []
    nodes.add(e.Registered(nodes.now, "renamed", "r", "l", Phase.DRAINED))
    nodes.has("renamed", gpu("BAD"))
    assert nodes.nodes_of("BAD") == ["renamed"] and nodes.failures() == 3
    assert nodes.has("a0", gpu("S0")), "a node of the old name that comes back says what it has"


def test_a_part_that_did_not_answer_is_not_gone(nodes: Nodes) -> None:
    two = (gpu("BAD"), gpu("X", "0000:2a:00.0"))
    nodes.has("a0", *two)
    assert not nodes.has("a0", two[1], is_complete=False)
    assert nodes.nodes_of("BAD") == ["a0"]
    nodes.has("a0", gpu("Y", "0000:2a:00.0"), is_complete=False)
    assert nodes.nodes_of("BAD") == ["a0"] and nodes.nodes_of("Y") == ["a0"] and nodes.nodes_of("X") == []


def test_what_was_refuted_and_what_gave_no_answer_does_not_count(nodes: Nodes) -> None:
    verdict = nodes.fails("a0")
    assert nodes.failures() == 1
    nodes.add(e.Judged(nodes.now + 5, "a0", "gpu_lost", verdict, is_confirmed=False))
    assert nodes.failures() == 0
    nodes.add(e.Judged(nodes.now + 6, "a0", "gpu_lost", verdict, is_confirmed=False))
    nodes.fails("a0", status=Status.UNKNOWN)
    assert nodes.failures() == 0


def test_a_replay_of_the_stored_events_has_the_same_history(nodes: Nodes) -> None:
    for _ in range(4):
        nodes.fails("a0")
    nodes.has("a1", gpu("BAD"))
    nodes.has("a0", gpu("NEW", firmware="97.00"))
    nodes.add(e.Labelled(nodes.now, "a0", "team", "vision", "operator:x"))
    nodes.add(e.Placed(nodes.now, "a0", "rack-4", "leaf-2", "spine-1", "nvl-7", "operator:x"))
    again = Fleet.replay(LIMITS, 0, [decode(encode(each)) for each in nodes.log])
    assert again.nodes == nodes.fleet.nodes and again.parts.records == nodes.fleet.parts.records
    assert again.nodes["a0"].leaf == "leaf-2"
    late = [each for each in nodes.log if isinstance(each, e.InventoryChanged | e.Labelled | e.Placed)]
    assert not any([again.apply(each) for each in late]), "late and duplicate events change nothing"


def test_a_decision_that_is_tried_changes_no_history(nodes: Nodes) -> None:
    draft = nodes.fleet.draft()
    draft.apply(e.InventoryChanged(nodes.now + 1, "a0", Reader.POD, (gpu("NEW"),)))
    assert nodes.nodes_of("BAD") == ["a0"] and ("gpu", "NEW") not in nodes.fleet.parts.records


def test_a_label_is_taken_away_by_an_empty_value(nodes: Nodes) -> None:
    nodes.add(e.Labelled(1.0, "a0", "team", "vision", "x"))
    nodes.add(e.Labelled(2.0, "a0", "team", "", "x"))
    assert nodes.fleet.nodes["a0"].labels == ()
    assert not nodes.add(e.Labelled(3.0, "a0", "team", "", "x"))


HCA = HostPart("hca", "mlx5_0", "MT4129", "e8eb:d303")


@pytest.mark.parametrize(
    ("devices", "serials"),
    [
        ("0000:18:00.0", ["A"]),
        ("PCI:0000:18:00", ["A"]),
        ("mlx5_0/1", ["e8eb:d303"]),
        ("a", ["A"]),
        ("0000:18:00.0,0000:2a:00.0", ["A", "B"]),
        ("0000:18:00.0,0000:2a:00.0,mlx5_0", []),
        ("0000:99:00.0", []),
        (",,", []),
        ("", []),
    ],
)
def test_which_parts_a_check_names(devices: str, serials: Sequence[str]) -> None:
    parts = [gpu("A"), gpu("B", "0000:2a:00.0"), HCA, replace_serial(HCA)]
    assert [each.serial for each in named(devices, parts)] == serials


def replace_serial(part: HostPart) -> HostPart:
    return part._replace(serial="")
