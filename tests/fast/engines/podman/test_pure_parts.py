"""Addresses, rules, hosts files, events, observations: the parts that touch nothing."""

import asyncio
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.engines.base import EngineError, EventKind, PodPhase, Reference
from neocloud.engines.manifest import ConfigMapSource, Container, KeyToPath, Pod, SecretSource, Service
from neocloud.engines.podman.containers import (
    LOST,
    Row,
    living_containers,
    monitors_ended,
    observed_pod,
    phase_of,
    with_lost,
)
from neocloud.engines.podman.execution import FrameDecoder, LineJoiner
from neocloud.engines.podman.host import Host
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.network import netavark
from neocloud.engines.podman.network.addresses import NamespaceNetwork, candidate_subnets
from neocloud.engines.podman.network.attachments import HostEntry, render_hosts, write_in_place
from neocloud.engines.podman.network.firewall import render_table
from neocloud.engines.podman.network.netavark import Entry, is_unused
from neocloud.engines.podman.observer import PodmanEvent, SeenEvents, pod_event
from neocloud.engines.podman.probes import ReadinessState
from neocloud.engines.podman.service import render_configuration
from neocloud.engines.podman.storage.config_mounts import ConfigMounts

LAYOUT = Layout.of(Path("/var/lib/neocloud"))

MAIN = Container(name="main", image="busybox")


def network(prefix: int = 24) -> NamespaceNetwork:
    return NamespaceNetwork(IPv4Network(f"10.89.7.0/{prefix}"), "nc000000-7")


def test_addresses_are_the_lowest_free_and_stay_with_their_name() -> None:
    net = network()
    assert [str(net.allocate(pod)) for pod in ("a", "b", "a")] == ["10.89.7.2", "10.89.7.3", "10.89.7.2"]
    net.release("a")
    assert str(net.allocate("c")) == "10.89.7.4"
    restored = NamespaceNetwork.from_record(net.record())
    assert str(restored.allocate("a")) == "10.89.7.2"


def test_oldest_released_address_is_given_away_when_none_is_left() -> None:
    net = network(29)
    for pod in "abcde":
        net.allocate(pod)
    with pytest.raises(EngineError, match="All 5 addresses"):
        net.allocate("f")
    net.release("b")
    net.release("a")
    assert net.allocate("f") == IPv4Address("10.89.7.3")


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans())))
def test_no_two_pods_ever_share_an_address(steps: list[tuple[str, bool]]) -> None:
    net, present = network(29), dict[str, IPv4Address]()
    for pod, add in steps:
        if add and len(present) < 5:
            present[pod] = net.allocate(pod)
        elif not add and pod in present:
            net.release(pod)
            del present[pod]
        assert len(set(present.values())) == len(present)


def test_subnets_in_use_are_passed_over() -> None:
    pool = IPv4Network("10.89.0.0/22")
    taken = [IPv4Network("10.89.2.128/25"), IPv4Network("10.89.0.0/23")]
    assert [number for number, _ in candidate_subnets(pool, taken, start=2)] == [3]


def test_rules_deny_between_namespaces_and_to_the_machine() -> None:
    bridges = [("ncx-2", IPv4Network("10.89.2.0/24")), ("ncx-1", IPv4Network("10.89.1.0/24"))]
    rules = [line.strip() for line in render_table(LAYOUT, bridges).splitlines()]
    forward = rules[rules.index("chain forward {") : rules.index("chain input {")]
    assert 'iifname "ncx-1" ip saddr != 10.89.1.0/24 drop' in forward
    own, others = 'iifname "ncx-1" oifname "ncx-1" accept', 'meta oifkind "bridge" counter drop'
    assert forward.index(own) < next(i for i, rule in enumerate(forward) if others in rule)
    assert forward.index('iifname "nc03f7d6-*" jump to_outside') > forward.index(own)
    assert forward[-2:] == ["counter drop", "}"]
    assert rules[-4:] == ["ct state established,related accept", "counter drop", "}", "}"]


def test_hosts_file_names_pods_by_hostname_and_by_their_services() -> None:
    def pod(name: str, **spec: Any) -> Pod:
        return Pod(name=name, namespace="space", labels={"role": "db"}, containers=(MAIN,), **spec)

    service = Service(name="database", namespace="space", selector={"role": "db"})
    text = render_hosts(
        [
            HostEntry(IPv4Address("10.0.0.10"), pod("b.c", subdomain="nodes")),
            HostEntry(IPv4Address("10.0.0.9"), pod("a", hostname="first"), domain="lab.internal"),
        ],
        [service, Service(name="all", namespace="space")],
        [HostEntry(IPv4Address("10.0.0.2"), pod("a"), domain="lab.internal")],
        [IPv4Address("10.0.0.1")],
    )
    assert text.splitlines()[2:] == [
        "10.0.0.9 first first.lab.internal database",
        "10.0.0.10 b-c b-c.nodes database",
        "10.0.0.2 a a.lab.internal",
        "10.0.0.1 _gateway",
    ]


def test_hosts_file_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    write_in_place(path, "a long first text\n")
    with path.open() as held:
        write_in_place(path, "short\n")
        assert held.read() == "short\n"


def test_projected_files_follow_their_object(tmp_path: Path) -> None:
    secrets = ConfigMounts(tmp_path, "Secret")
    secrets.put("space", "login", {"token": b"old", "user": b"me"})
    whole = secrets.view("space", SecretSource(name="login", default_mode=0o400))
    part = secrets.view("space", SecretSource(name="login", items=(KeyToPath("token", "sub/t"),)))
    assert (whole / "token").stat().st_mode & 0o777 == 0o400
    secrets.put("space", "login", {"token": b"new"})
    assert [path.name for path in whole.iterdir()] == ["token"]
    assert (whole / "token").read_bytes() == (part / "sub" / "t").read_bytes() == b"new"


def test_pods_that_start_together_get_the_same_files(tmp_path: Path) -> None:
    """One view that many threads make, and write again, at once."""
    keys = {f"host-{number}": b"key" * 400 for number in range(40)}
    for attempt in range(10):
        maps = ConfigMounts(tmp_path / str(attempt), "ConfigMap")
        maps.put("space", "keys", keys)
        with ThreadPoolExecutor(8) as threads:
            made = [threads.submit(maps.view, "space", ConfigMapSource(name="keys")) for _ in range(8)]
            (view,) = {each.result() for each in made}
        assert {path.name for path in view.iterdir()} == set(keys)


def test_missing_objects_are_named_unless_optional(tmp_path: Path) -> None:
    maps = ConfigMounts(tmp_path, "ConfigMap")
    with pytest.raises(EngineError, match="ConfigMap absent"):
        maps.view("space", ConfigMapSource(name="absent"))
    assert list(maps.view("space", ConfigMapSource(name="absent", optional=True)).iterdir()) == []
    with pytest.raises(EngineError, match="no key 'k'"):
        maps.view("space", ConfigMapSource(name="absent", items=(KeyToPath("k", "k"),)))


@given(st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40))), st.integers(1, 9))
def test_frames_are_put_together_however_they_were_cut(pieces: list[tuple[int, bytes]], cut: int) -> None:
    wire = b"".join(bytes([s, 0, 0, 0]) + len(p).to_bytes(4, "big") + p for s, p in pieces)
    decoder = FrameDecoder()
    found = [piece for at in range(0, len(wire), cut) for piece in decoder.feed(wire[at : at + cut])]

    def stream_of(these: list[tuple[int, bytes]]) -> list[tuple[int, int]]:
        return [(stream, byte) for stream, piece in these for byte in piece]

    assert stream_of(found) == stream_of(pieces)


def test_lines_of_two_streams_do_not_mix() -> None:
    joiner = LineJoiner()
    lines = [line for s, p in [(1, b"on"), (2, b"err\n"), (1, b"e\ntw")] for line in joiner.feed(s, p)]
    assert [*lines, *joiner.rest()] == ["err", "one", "tw"]


def row(state: str, code: int = 0, name: str = "main") -> Row:
    labels = {"neocloud.container": name}
    return Row(Id="e" * 64, State=state, Pid=1, ExitCode=code, StartedAt=5, Labels=labels)


@pytest.mark.parametrize(
    ("rows", "policy", "phase"),
    [
        ([row("running")], "Always", PodPhase.RUNNING),
        ([row("created")], "Never", PodPhase.PENDING),
        ([row("exited")], "Never", PodPhase.SUCCEEDED),
        ([row("exited", 3)], "Never", PodPhase.FAILED),
        ([row("exited", 3)], "OnFailure", PodPhase.PENDING),
        ([row("exited")], "OnFailure", PodPhase.SUCCEEDED),
        ([row("exited")], "Always", PodPhase.PENDING),
        ([row("running"), row("exited", 3)], "Never", PodPhase.RUNNING),
        ([row("exited"), row("exited", 3)], "Never", PodPhase.FAILED),
        ([row("exited"), row("created")], "Never", PodPhase.PENDING),
    ],
)
def test_phase_follows_states_and_policy(rows: list[Row], policy: str, phase: PodPhase) -> None:
    assert phase_of(rows, len(rows), policy)[0] is phase


def test_half_made_pod_is_pending_and_never_ready() -> None:
    pod = Pod(name="one", namespace="space", containers=(MAIN, replace(MAIN, name="side")))
    reference = Reference("Pod", "space", "one")
    rows = [row("running", name="_"), row("running")]
    seen = observed_pod(reference, rows, pod, ip=None, ready=True, restart_count=0)
    assert seen.phase is PodPhase.PENDING and not seen.ready


HOME = "1e8040"


def event(status: str, seconds: float = 1.0, labels: dict[str, str] | None = None) -> PodmanEvent:
    attributes = {
        "neocloud.home": HOME,
        "neocloud.namespace": "space",
        "neocloud.pod": "one",
        **(labels or {}),
    }
    time = datetime.fromtimestamp(seconds, UTC).isoformat()
    return PodmanEvent(Type="container", Status=status, ID="x", Attributes=attributes, Time=time)


def test_death_carries_its_exit_code() -> None:
    raw = event("died", labels={"neocloud.container": "main"})
    ended = pod_event(raw, HOME)
    raw["ContainerExitCode"] = 137
    killed = pod_event(raw, HOME)
    assert ended and killed and (ended.exit_code, killed.exit_code) == (0, 137)
    assert killed.kind is EventKind.POD_DIED and killed.at == datetime.fromtimestamp(1, UTC)


def test_sandbox_is_news_only_when_it_goes() -> None:
    labels = {"neocloud.container": "_", "neocloud.network": "owner"}
    assert pod_event(event("start", labels=labels), HOME) is None
    assert pod_event(event("died", labels=labels), HOME) is None
    removed = pod_event(event("remove", labels=labels), HOME)
    assert removed and removed.kind is EventKind.POD_REMOVED
    assert pod_event(event("remove", labels={"neocloud.container": "main"}), HOME) is None


def test_events_of_another_home_are_not_told() -> None:
    assert pod_event(event("start", labels={"neocloud.container": "main"}), "another") is None


def test_events_read_again_are_not_told_again() -> None:
    seen = SeenEvents(since=1.0)
    assert not seen.is_new(event("start", 0.5))
    assert seen.is_new(event("start", 2))
    assert not seen.is_new(event("start", 2))
    assert seen.is_new(event("died", 2))


def test_readiness_is_news_when_it_begins_ends_and_returns() -> None:
    state = ReadinessState(threshold=2)
    results = [False, True, True, False, False, False, True]
    assert [state.note(success=each) for each in results] == [False, True, False, False, True, False, True]


def test_readiness_counts_only_since_the_last_start() -> None:
    state = ReadinessState(threshold=3, last_success=100.0)
    assert state.is_ready(datetime.fromtimestamp(99, UTC))
    assert not state.is_ready(datetime.fromtimestamp(101, UTC))
    assert not state.is_ready(None)
    state.failures = 3
    assert not state.is_ready(datetime.fromtimestamp(99, UTC))


def chain(name: str, **fields: str) -> Entry:
    found: Any = {"name": name, **fields}
    return Entry(chain=found)


def jump(chain: str, target: str) -> Entry:
    return {"rule": {"chain": chain, "expr": [{"jump": {"target": target}}]}}


BASE = [chain("OUTPUT", hook="output", policy="accept"), chain("NETAVARK-HOSTPORT-DNAT")]
JUMP = jump("OUTPUT", "NETAVARK-HOSTPORT-DNAT")


@pytest.mark.parametrize(
    ("entries", "unused"),
    [
        ([*BASE, JUMP], True),
        ([*BASE, JUMP, chain("NETAVARK-25FB2A99519D4")], False),
        ([*BASE, JUMP, chain("DOCKER")], False),
        ([*BASE, JUMP, jump("OUTPUT", "DOCKER")], False),
        ([chain("FORWARD", hook="forward", policy="drop")], False),
        ([*BASE, {"rule": {"chain": "OUTPUT", "expr": [{"accept": None}]}}], False),
    ],
)
def test_only_tables_that_serve_nobody_are_taken_away(entries: list[Entry], unused: bool) -> None:
    assert is_unused(entries) is unused


def test_two_homes_share_no_name() -> None:
    other = Layout.of(Path("/srv/neocloud"))
    for name in ("interface_prefix", "table", "cgroup", "run"):
        assert getattr(LAYOUT, name) != getattr(other, name)
    assert LAYOUT.network("space") != other.network("space")


@pytest.mark.parametrize("name", ["with:colon", "with,comma", 'with"quote'])
def test_home_that_mounts_cannot_carry_is_refused(name: str) -> None:
    with pytest.raises(EngineError, match="choose another folder"):
        Layout.of(Path("/tmp") / name)


def forward(chain: str, container: str, port: int) -> str:
    """A rule as `iptables --list-rules` prints what netavark made."""
    comment = f'"dnat name: neocloud-4d4b44-bank id: {container * 64}"'
    jump = f"-j NETAVARK-DN-{chain}"
    return f"-A NETAVARK-HOSTPORT-DNAT -p tcp -m tcp --dport {port} -m comment --comment {comment} {jump}"


def test_forwards_of_dead_containers_go_and_others_stay() -> None:
    rules = [
        "-N NETAVARK-DN-AAAA",
        "-A NETAVARK-DN-AAAA -p tcp -m tcp --dport 2222 -j DNAT --to-destination 10.89.68.4:22",
        forward("AAAA", "a", 2222),
        forward("AAAA", "b", 2223),
        forward("CCCC", "c", 2224),
    ]
    assert netavark.forwarded_containers(rules) == {"a" * 64, "b" * 64, "c" * 64}
    commands = netavark.forward_removal(rules, {"a" * 64, "c" * 64})
    assert [command[0] for command in commands] == ["--delete", "--delete", "--flush", "--delete-chain"]
    assert commands[0][1:7] == ["NETAVARK-HOSTPORT-DNAT", "-p", "tcp", "-m", "tcp", "--dport"]
    assert [command[7] for command in commands[:2]] == ["2222", "2224"]
    assert f"dnat name: neocloud-4d4b44-bank id: {'a' * 64}" in commands[0]
    assert commands[2:] == [["--flush", "NETAVARK-DN-CCCC"], ["--delete-chain", "NETAVARK-DN-CCCC"]]
    assert netavark.forward_removal(rules, set()) == []


def test_rules_that_a_removed_network_left_are_removed_and_no_others() -> None:
    """The rules are as `iptables --list-rules` showed them after another Podman had changed rules at the same
    moment.
    """
    ours, other = "CB2B5F98120C9", "365A911BD7F4D"
    nat = [
        *(f"-N NETAVARK-{mark}" for mark in (ours, other)),
        "-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ",
        f"-A POSTROUTING -s 10.89.170.0/24 -j NETAVARK-{ours}",
        f"-A POSTROUTING -s 10.89.138.0/24 -j NETAVARK-{other}",
        f"-A NETAVARK-{ours} -d 10.89.170.0/24 -j ACCEPT",
        f"-A NETAVARK-{ours} ! -d 224.0.0.0/4 -j MASQUERADE",
        f"-A NETAVARK-{other} -d 10.89.138.0/24 -j ACCEPT",
    ]
    established = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    filters = [f"-A NETAVARK_FORWARD -d 10.89.{third}.0/24 {established}" for third in (170, 138)]
    filters += [f"-A NETAVARK_FORWARD -s 10.89.{third}.0/24 -j ACCEPT" for third in (170, 138)]
    removed = netavark.network_removal({"nat": nat, "filter": filters}, ours)
    assert removed == [
        ("nat", f"--delete POSTROUTING -s 10.89.170.0/24 -j NETAVARK-{ours}".split()),
        ("filter", f"--delete NETAVARK_FORWARD -d 10.89.170.0/24 {established}".split()),
        ("filter", ["--delete", "NETAVARK_FORWARD", "-s", "10.89.170.0/24", "-j", "ACCEPT"]),
        ("nat", ["--flush", f"NETAVARK-{ours}"]),
        ("nat", ["--delete-chain", f"NETAVARK-{ours}"]),
    ]
    assert netavark.network_removal({"nat": nat[2:3], "filter": filters[1::2]}, ours) == []


def test_a_container_counts_as_lost_only_when_neither_it_nor_its_monitor_has_a_process() -> None:
    above_any_process = 4_194_305
    rows = [
        Row(Id="d" * 64, State="running", Pid=above_any_process, ExitCode=0, StartedAt=5, Labels={}),
        Row(Id="e" * 64, State="exited", Pid=0, ExitCode=3, StartedAt=5, Labels={}),
    ]
    lost, ended = with_lost(rows)
    assert (lost["State"], lost["ExitCode"]) == (LOST, 137)
    assert ended == rows[1]
    monitor = subprocess.Popen([sys.executable, "-c", "input()", "d" * 64], stdin=subprocess.PIPE)
    try:
        while "d" * 64 not in living_containers():  # its command line shows a moment after its start
            assert monitor.poll() is None
        assert with_lost(rows) == rows
    finally:
        monitor.communicate()


async def test_container_has_ended_when_its_own_monitor_is_gone() -> None:
    """Monitors of commands that ran in it name it, too, and stay around."""
    wait = [sys.executable, "-c", "input()"]
    other = subprocess.Popen([*wait, "-c", "f" * 64, "-u", "a" * 64], stdin=subprocess.PIPE)
    monitor = subprocess.Popen([*wait, "-c", "f" * 64, "-u", "f" * 64, "-r"], stdin=subprocess.PIPE)
    try:
        while "f" * 64 not in living_containers():
            assert monitor.poll() is None
        waiting = asyncio.create_task(monitors_ended(["f" * 64]))
        done, _ = await asyncio.wait([waiting], timeout=0.2)
        assert not done
        monitor.communicate()
        assert await waiting
    finally:
        for process in (other, monitor):
            process.kill()
            process.communicate()


def test_podman_5_is_told_to_use_iptables(tmp_path: Path) -> None:
    """Its netavark may be built to use nftables, where stale port forwards would not be found."""

    def configuration(version: str) -> str:
        host = Host("podman", version, "runc", "catatonit", "v2", (), bridges_pass_filters=True)
        return render_configuration(Layout.of(tmp_path), host)["containers.conf"]

    assert 'firewall_driver = "iptables"' in configuration("5.4.2")
    assert "firewall_driver" not in configuration("4.3.1")
