"""Legal and illegal clusters (SLURM-02, SLURM-10)."""

from datetime import UTC, datetime

import pytest
from neocloud.messages.neocloud.slurm.v1 import Cluster

from neocloud.core.contract import ApiError, Code
from neocloud.core.store.protocol import Resource
from neocloud.services.slurm.rules import ClusterRules, LoginPorts
from neocloud.services.slurm.types import CLUSTER
from neocloud.settings.settings import Settings
from tests.fast.services.slurm.conftest import public_key

RULES = ClusterRules()
NOW = datetime(2026, 11, 1, tzinfo=UTC)


def fields(violations) -> list[str]:
    return [violation.field for violation in violations]


def row_of(cluster, *, cluster_id: str, name: str) -> Resource:
    return Resource(
        cluster_id,
        CLUSTER,
        "project-e00one",
        name,
        NOW,
        NOW,
        spec=cluster.spec.SerializeToString(),
        status=cluster.status.SerializeToString(),
    )


def test_a_plain_cluster_is_legal(cluster, world):
    assert not list(RULES.violations(cluster, None, world))


def test_the_shared_root_has_a_default_size(cluster):
    RULES.defaults(cluster)
    assert cluster.spec.shared_root.size_gibibytes == 64


def test_an_unknown_platform_is_named_with_the_known_ones(cluster, world):
    cluster.spec.node_sets[0].platform = "cpu-of-dreams"
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.node_sets[0].platform"
    assert "cpu-local" in violation.message


def test_an_unknown_preset_is_named_with_the_known_ones(cluster, world):
    cluster.spec.node_sets[0].preset = "9vcpu-1gb"
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.node_sets[0].preset"
    assert "1vcpu-4gb" in violation.message


def test_two_node_sets_of_one_name_are_refused(cluster, world):
    cluster.spec.node_sets.add(name="worker", platform="cpu-local", preset="1vcpu-4gb", count=1)
    assert fields(RULES.violations(cluster, None, world)) == ["spec.node_sets[1].name"]


@pytest.mark.parametrize("name", ["controller", "login", "accounting"])
def test_names_of_the_clusters_own_pods_are_reserved(cluster, world, name):
    cluster.spec.node_sets[0].name = name
    assert fields(RULES.violations(cluster, None, world)) == ["spec.node_sets[0].name"]


@pytest.mark.parametrize(
    "text",
    ["", "hello", "ssh-ed25519 AAAA", "-----BEGIN OPENSSH PRIVATE KEY-----", "ssh-rsa AAAA\nssh-rsa BBBB"],
)
def test_what_is_no_ssh_key_is_refused(cluster, text):
    cluster.spec.login.ssh_public_keys.append(text)
    (violation,) = RULES.request_violations(cluster)
    assert violation.field == "spec.login.ssh_public_keys[1]"
    assert ".pub" in violation.message


def test_a_private_key_is_never_repeated_in_the_message(cluster):
    cluster.spec.login.ssh_public_keys.append("-----BEGIN OPENSSH PRIVATE KEY-----hush")
    (violation,) = RULES.request_violations(cluster)
    assert "hush" not in violation.message


def test_keys_of_users_are_checked_like_those_of_root(cluster):
    cluster.spec.users.add(name="ann", ssh_public_keys=[public_key()])
    cluster.spec.users.add(name="bob", ssh_public_keys=[public_key(), "hello"])
    assert fields(RULES.request_violations(cluster)) == ["spec.users[1].ssh_public_keys[1]"]


@pytest.mark.parametrize(
    "name", ["root", "slurm", "munge", "nobody", "sshd", "haproxy", "systemd-network", "ann"]
)
def test_a_user_is_neither_an_account_of_the_system_nor_there_twice(cluster, world, name):
    cluster.spec.users.add(name="ann")
    cluster.spec.users.add(name=name)
    assert fields(RULES.violations(cluster, None, world)) == ["spec.users[1].name"]


@pytest.mark.parametrize(
    "line",
    [
        'command="reboot" {}',
        'from="*" {}',
        "cert-authority {}",
        "{0}\n{0}",
        "{}\rcommand",
        "{} \x1b[2J",
        "# {}",
    ],
)
def test_a_key_with_options_or_more_than_one_line_is_refused(cluster, line):
    """In an authorized_keys file it would say more than who may sign in."""
    cluster.spec.users.add(name="ann", ssh_public_keys=[line.format(public_key())])
    assert fields(RULES.request_violations(cluster)) == ["spec.users[0].ssh_public_keys[0]"]


def test_the_shared_root_does_not_shrink(cluster, world):
    old = Cluster.FromString(cluster.SerializeToString())
    old.spec.shared_root.size_gibibytes = 100
    cluster.spec.shared_root.size_gibibytes = 99
    assert fields(RULES.violations(cluster, old, world)) == ["spec.shared_root.size_gibibytes"]


def test_a_login_port_serves_one_cluster(cluster, world):
    cluster.spec.login.port = 2222
    world.rows.append(row_of(cluster, cluster_id="slurmcluster-e00other", name="other"))
    cluster.spec.node_sets[0].count = 1
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.login.port"
    assert "other" not in violation.message.replace("another", "")  # it may be another tenant's


@pytest.mark.parametrize("port", [22, 1024, 2221, 3000, 7370, 8900, 2300])
def test_a_login_port_comes_from_the_operators_range_and_is_none_of_the_clouds_own(cluster, world, port):
    world.provided.add(LoginPorts, LoginPorts.of(Settings(gateway_port=2300)))
    cluster.spec.login.port = port
    (violation,) = RULES.violations(cluster, None, world)
    assert violation.field == "spec.login.port" and "2222 to 2999" in violation.message


def test_ports_that_the_cloud_has_for_other_machines_are_its_own():
    settings = Settings(login_ports=(7000, 9000), tls_port=7372, listen=("192.0.2.7",))
    ports = LoginPorts.of(settings)
    assert not any(ports.allows(port) for port in (7374, 8901)) and ports.allows(7375)


def test_clouds_on_one_host_look_for_login_ports_in_different_parts_of_the_range():
    ports = [LoginPorts.of(Settings(cloud_number=number)).all() for number in range(16)]
    assert [each[0] for each in ports] == list(range(2222, 2990, 48))
    assert all(sorted(each) == list(range(2222, 3000)) for each in ports)
    few = LoginPorts.of(Settings(cloud_number=15, login_ports=(4000, 4001)))
    assert few.all() == [4000, 4001]


def test_a_cluster_keeps_a_port_that_the_range_no_longer_holds(cluster, world):
    cluster.spec.login.port = 5022
    assert not list(RULES.violations(cluster, cluster, world))


def test_a_port_that_the_cloud_chose_for_another_cluster_is_taken(cluster, world):
    cluster.status.login.port = 2222
    world.rows.append(row_of(cluster, cluster_id="slurmcluster-e00other", name="other"))
    cluster.spec.node_sets[0].count = 1
    cluster.spec.login.port = 2222
    assert fields(RULES.violations(cluster, None, world)) == ["spec.login.port"]


def test_more_nodes_than_the_machine_holds_are_refused_with_the_arithmetic(cluster, world):
    cluster.spec.node_sets[0].count = 17
    with pytest.raises(ApiError) as refusal:
        list(RULES.violations(cluster, None, world))
    assert refusal.value.code == Code.RESOURCE_EXHAUSTED
    assert "17 x" in refusal.value.message and "64 GiB are available" in refusal.value.message


def test_nodes_of_other_clusters_count_against_the_machine(cluster, world):
    world.rows.append(row_of(cluster, cluster_id="slurmcluster-e00other", name="other"))
    cluster.spec.node_sets[0].count = 15
    with pytest.raises(ApiError):
        list(RULES.violations(cluster, None, world))
