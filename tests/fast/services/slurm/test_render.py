"""A cluster as Kubernetes objects (SLURM-02, SLURM-04, SLURM-05, SLURM-07, SLURM-22)."""

import base64
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from neocloud.engines.manifest import Manifest
from neocloud.services.slurm.render import (
    ClusterSecrets,
    ClusterView,
    NodeSetView,
    SubmountView,
    configuration_version,
    foundation,
    pods,
    render,
)
from neocloud.services.slurm.render.configuration import gres_conf, node_conf, slurm_conf
from neocloud.services.slurm.render.pods import worker_pod
from neocloud.services.slurm.types import MODELS_MOUNT_PATH
from neocloud.settings.settings import Settings

SNAPSHOT = Path(__file__).parent / "snapshots" / "cluster.yaml"
WRITE = "NEOCLOUD_WRITE_SNAPSHOTS"

VIEW = ClusterView(
    name="bank",
    namespace="slurm-bank",
    image="localhost/neocloud/slurm:0123456789ab",
    node_sets=(
        NodeSetView("worker", count=2, cpus=4, memory_mib=16384),
        NodeSetView("gpu", count=1, cpus=16, memory_mib=65536, gpus=2, gpu_type="l40s"),
    ),
    secrets=ClusterSecrets(b"slurm key", b"jwt key", "database password", "host key", "worker host key"),
    authorized_keys=("ssh-ed25519 AAAA one@bank", "ssh-ed25519 BBBB two@bank\n"),
    worker_host_public_key="ssh-ed25519 CCCC",
    shared_root_claim="shared-root",
    ssh_host_port=2222,
)


def written(manifests: Sequence[Manifest]) -> list[dict]:
    return [manifest.to_dict() for manifest in manifests]


def pod(name: str, view: ClusterView = VIEW) -> dict:
    return next(pod for pod in written(pods(view)) if pod["metadata"]["name"] == name)


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if re.match(r"^\w+=", line))


def test_the_objects_are_those_of_the_snapshot():
    rendered = yaml.safe_dump_all(written(render(VIEW)), sort_keys=False, width=110)
    if os.environ.get(WRITE):
        SNAPSHOT.write_text(rendered)
    assert rendered == SNAPSHOT.read_text(), f"meant? {WRITE}=1 pytest {__file__}, then look at the diff"


def test_a_pod_comes_after_everything_it_mounts():
    """SLURM-20: applying the list in order never starts a pod that lacks a volume."""
    known: set[tuple[str, str]] = {("persistentVolumeClaim", VIEW.shared_root_claim)}
    kinds = {
        "ConfigMap": "configMap",
        "Secret": "secret",
        "PersistentVolumeClaim": "persistentVolumeClaim",
    }
    for item in written(render(VIEW)):
        if item["kind"] in kinds:
            known.add((kinds[item["kind"]], item["metadata"]["name"]))
        for volume in item.get("spec", {}).get("volumes", []):
            source = next(key for key in volume if key != "name")
            if source != "emptyDir":
                named = volume[source]
                name = named.get("name") or named.get("secretName") or named.get("claimName")
                assert (source, name) in known


def test_every_mount_names_a_volume_of_its_pod():
    for item in written(pods(VIEW)):
        volumes = {volume["name"] for volume in item["spec"]["volumes"]}
        for container in item["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes


def test_pods_are_named_as_slurm_users_know_them():
    """FT-11: `login-0`, `worker-[0-1]`."""
    names = [item["metadata"]["name"] for item in written(pods(VIEW))]
    assert names == ["accounting-0", "controller-0", "login-0", "worker-0", "worker-1", "gpu-0"]
    assert all(item["spec"]["hostname"] == item["metadata"]["name"] for item in written(pods(VIEW)))


def test_no_pod_is_privileged():
    """SLURM-07: SYS_ADMIN to lay mounts, no access to the machine's devices."""
    for item in written(pods(VIEW)):
        for container in item["spec"]["containers"]:
            context = container.get("securityContext", {})
            assert not context.get("privileged")
            added = set(context.get("capabilities", {}).get("add", []))
            nodes = {"SYS_ADMIN", "AUDIT_WRITE", "NET_RAW"}  # both run sshd
            assert added <= (nodes if container["name"] in ("login", "worker") else set())


def test_only_workers_and_login_nodes_may_write_the_shared_root():
    for item in written(pods(VIEW)):
        for container in item["spec"]["containers"]:
            for mount in container["volumeMounts"]:
                if mount["name"] == "shared-root":
                    assert mount.get("readOnly", False) == (container["name"] in ("controller", "rest"))


def test_the_token_key_stays_with_the_daemons():
    for name in ("login-0", "worker-0", "gpu-0"):
        assert "jwt-key" not in {volume["name"] for volume in pod(name)["spec"]["volumes"]}


def test_only_the_login_node_is_reachable_from_the_machine_and_only_on_loopback():
    published = {
        item["metadata"]["name"]: (port["hostIP"], port["hostPort"])
        for item in written(pods(VIEW))
        for container in item["spec"]["containers"]
        for port in container["ports"]
        if "hostPort" in port
    }
    assert published == {"login-0": ("127.0.0.1", 2222)}


@pytest.mark.parametrize(
    ("listen", "published", "host"),
    [
        ((), ["127.0.0.1"], "127.0.0.1"),
        (("::1", "2001:db8::7"), ["127.0.0.1"], "127.0.0.1"),  # pods have no IPv6 addresses
        (("2001:db8::7", "192.0.2.7"), ["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        (("192.0.2.7", "127.0.0.1"), ["127.0.0.1", "192.0.2.7"], "192.0.2.7"),
        (("all",), ["0.0.0.0"], "0.0.0.0"),
    ],
)
def test_the_login_node_has_its_port_where_the_operator_opens_the_cloud(listen, published, host):
    opened = replace(VIEW, ssh_host_addresses=Settings(listen=listen).login_addresses)
    ports = pod("login-0", opened)["spec"]["containers"][0]["ports"]
    assert ports == [{"containerPort": 22, "hostIP": each, "hostPort": 2222} for each in published]
    assert opened.ssh_host == host


def test_of_several_login_nodes_none_has_a_port_of_the_host_but_the_balancer_before_them():
    """SLURM-03. It has neither keys nor the shared root, nor capabilities."""
    several = replace(VIEW, login_count=2)
    for name in ("login-0", "login-1"):
        assert pod(name, several)["spec"]["containers"][0]["ports"] == [{"containerPort": 22}]
    balancer = pod("balancer-0", several)["spec"]
    (container,) = balancer["containers"]
    assert container["ports"] == [{"containerPort": 22, "hostIP": "127.0.0.1", "hostPort": 2222}]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["login-nodes"]
    assert [volume["configMap"]["name"] for volume in balancer["volumes"]] == ["login-nodes"]
    assert "securityContext" not in container


def test_without_a_port_nothing_is_published():
    container = pod("login-0", replace(VIEW, ssh_host_port=None))["spec"]["containers"][0]
    assert container["ports"] == [{"containerPort": 22}]


def test_jobs_may_use_all_the_memory_of_the_preset():
    limits = pod("worker-0")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": "4", "memory": f"{16384 + 256}Mi"}
    assert "RealMemory=16384" in node_conf(VIEW.node_sets[0])


def test_gpus_are_asked_of_the_engine_and_told_to_slurm_with_their_type():
    """SJOB-02: `--gres=gpu:l40s:2`."""
    gpu_set = VIEW.node_sets[1]
    limits = pod("gpu-0")["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "2"
    assert "Gres=gpu:l40s:2" in node_conf(gpu_set)
    assert gres_conf(VIEW) == "NodeName=gpu-[0-1023] Name=gpu Type=l40s File=/dev/gpu[0-1]\n"


def test_gpus_of_any_type_have_none():
    """`gpu-local` takes whatever the machine has."""
    any_set = replace(VIEW.node_sets[1], gpu_type="")
    assert "Gres=gpu:2 " in node_conf(any_set)
    any_view = replace(VIEW, node_sets=(any_set,))
    assert gres_conf(any_view) == "NodeName=gpu-[0-1023] Name=gpu File=/dev/gpu[0-1]\n"
    assert worker_pod(any_view, any_set, "gpu-0").gpu_type == ""


def test_a_worker_requests_the_type_of_its_platform():
    worker = worker_pod(VIEW, VIEW.node_sets[1], "gpu-0")
    assert worker.gpu_type == "l40s"
    untyped = replace(worker, gpu_type="")
    assert worker.fingerprint == untyped.fingerprint  # workers of an earlier release are not replaced


def test_one_gpu_is_no_range():
    single = replace(VIEW, node_sets=(replace(VIEW.node_sets[1], gpus=1),))
    assert gres_conf(single).rstrip().endswith("File=/dev/gpu0")


def test_counts_change_no_configuration():
    """SLURM-10: workers come and go without a reload."""
    larger = replace(VIEW, node_sets=tuple(replace(each, count=9) for each in VIEW.node_sets))
    assert configuration_version(larger) == configuration_version(VIEW)


def test_a_further_node_set_changes_the_configuration():
    further = replace(VIEW, node_sets=(*VIEW.node_sets, NodeSetView("big", 1, 32, 131072)))
    assert configuration_version(further) != configuration_version(VIEW)
    assert "PartitionName=big Nodes=big" in slurm_conf(further)


def test_a_node_set_named_like_the_default_partition_gets_no_second_one():
    only = replace(VIEW, node_sets=(NodeSetView("main", 1, 4, 8192),))
    assert slurm_conf(only).count("PartitionName=main ") == 1


def test_jobs_without_a_memory_request_fit_the_leanest_node_on_every_cpu():
    assert settings(slurm_conf(VIEW))["DefMemPerCPU"] == str(min(16384 // 4, 65536 // 16))


def test_jobs_that_name_gpus_only_get_the_share_of_a_gpu_in_cpus_and_memory():
    big = NodeSetView("big", 1, 128, 1_600_000, gpus=8)
    found = slurm_conf(replace(VIEW, node_sets=(*VIEW.node_sets, big)))
    assert "PartitionName=gpu Nodes=gpu DefCpuPerGPU=8 DefMemPerGPU=32768\n" in found
    assert "PartitionName=big Nodes=big DefCpuPerGPU=16 DefMemPerGPU=200000\n" in found
    assert "PartitionName=main Nodes=ALL Default=YES DefCpuPerGPU=8 DefMemPerGPU=32768\n" in found, (
        "fits both"
    )
    assert "PartitionName=worker Nodes=worker\n" in found
    without = replace(VIEW, node_sets=VIEW.node_sets[:1])
    assert "PerGPU" not in slurm_conf(without)
    many = replace(VIEW, node_sets=(NodeSetView("many", 1, 4, 8192, gpus=8),))
    assert "DefCpuPerGPU=1 DefMemPerGPU=1024" in slurm_conf(many)


def test_workers_ask_for_cpus_of_their_own_and_nothing_else_does():
    asking = {each.name for each in pods(VIEW) if each.own_cpus}
    assert asking == {"worker-0", "worker-1", "gpu-0"}
    assert pod("gpu-0")["metadata"]["annotations"]["neocloud.dev/own-cpus"] == "true"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("AccountingStorageEnforce", "associations,limits,qos"),  # SLURM-22
        ("HealthCheckProgram", "/usr/local/lib/neocloud/check-node"),
        ("JobRequeue", "1"),
        ("ReturnToService", "2"),
        ("PluginDir", "/opt/slurm/plugins"),
    ],
)
def test_slurm_is_told(setting, value):
    assert settings(slurm_conf(VIEW))[setting] == value


def test_the_database_password_is_in_secrets_only():
    plain = yaml.safe_dump_all(item for item in written(render(VIEW)) if item["kind"] != "Secret")
    assert VIEW.secrets.database_password not in plain
    assert VIEW.secrets.database_password not in repr(VIEW)


def test_secrets_keep_every_byte():
    key = bytes(range(256)) * 4
    view = replace(VIEW, secrets=replace(VIEW.secrets, slurm_key=key))
    secret = next(item for item in written(foundation(view)) if item["metadata"]["name"] == "slurm-key")
    assert base64.b64decode(secret["data"]["slurm.key"]) == key


def test_login_keys_are_one_per_line():
    keys = next(item for item in written(foundation(VIEW)) if item["metadata"]["name"] == "login-keys")
    assert keys["data"]["root"] == "ssh-ed25519 AAAA one@bank\nssh-ed25519 BBBB two@bank\n"


def test_keys_of_each_user_are_in_a_file_by_the_users_name():
    view = replace(VIEW, user_keys={"ann": ("ssh-ed25519 DDDD",), "bob": ()})
    keys = next(item for item in written(foundation(view)) if item["metadata"]["name"] == "login-keys")
    assert {name: keys["data"][name] for name in ("ann", "bob")} == {"ann": "ssh-ed25519 DDDD\n", "bob": ""}
    assert "root" in keys["data"]


def test_other_namespaces_are_kept_out():
    policy = next(item for item in written(foundation(VIEW)) if item["kind"] == "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {}}]}]


def test_nodes_reach_and_trust_object_storage_where_there_is_one():
    view = replace(VIEW, platform_services=("storage",), storage_authority="-----BEGIN CERTIFICATE-----\n")
    for rendered, reach in ((render(VIEW), []), (render(view), ["login-0", "worker-0", "worker-1", "gpu-0"])):
        objects = written(rendered)
        policy = next(each for each in objects if each["kind"] == "NetworkPolicy")
        named = {"neocloud.dev/platform-services": "storage"} if reach else {}
        assert policy["metadata"].get("annotations", {}) == named
        files = [each["data"] for each in objects if each["metadata"]["name"] == "storage"]
        assert files == ([{"ca.pem": view.storage_authority}] if reach else [])
        mounting = [
            each["metadata"]["name"]
            for each in objects
            if each["kind"] == "Pod"
            for mount in each["spec"]["containers"][0]["volumeMounts"]
            if mount["mountPath"] == "/etc/neocloud/storage" and mount["readOnly"]
        ]
        assert mounting == reach


SUBMOUNTS = replace(
    VIEW,
    submounts=(SubmountView("/scratch", 100), SubmountView("/fast", 2, in_memory=True)),
    node_sets=tuple(replace(each, submount_mib=2048) for each in VIEW.node_sets),
)


def test_each_worker_has_submounts_of_its_own_after_the_filesystems_and_nothing_else_has_them():
    """SLURM-08"""
    first = len(VIEW.mounts)
    worker = pod("worker-0", SUBMOUNTS)["spec"]
    volumes = {each["name"]: each for each in worker["volumes"]}
    assert volumes["submount-0"]["emptyDir"] == {"sizeLimit": "100Gi"}
    assert volumes["submount-1"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
    container = worker["containers"][0]
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    assert places["submount-0"] == f"/run/neocloud/filesystems/{first}"
    assert places["submount-1"] == f"/run/neocloud/filesystems/{first + 1}"
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert variables["NODE_FILESYSTEMS"].split()[first : first + 2] == ["/scratch", "/fast"]
    assert variables["NODE_SUBMOUNTS"] == f"{first} {first + 1}"
    for item in written(pods(SUBMOUNTS)):
        if not item["metadata"]["name"].startswith(("worker", "gpu")):
            assert "submount" not in json.dumps(item)


def test_memory_of_submounts_is_the_workers_beside_that_of_jobs():
    def limit(view: ClusterView) -> str:
        return pod("worker-0", view)["spec"]["containers"][0]["resources"]["limits"]["memory"]

    before, after = (int(limit(view).removesuffix("Mi")) for view in (VIEW, SUBMOUNTS))
    assert after == before + 2048


def test_the_models_folder_is_mounted_after_the_submounts():
    view = replace(SUBMOUNTS, models_folder="/srv/models", models_on=frozenset({"worker-0"}))
    container = pod("worker-0", view)["spec"]["containers"][0]
    variables = {each["name"]: each["value"] for each in container["env"]}
    places = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    number = int(places["shown"].rpartition("/")[2])
    assert variables["NODE_FILESYSTEMS"].split()[number] == MODELS_MOUNT_PATH
    assert number == len(VIEW.mounts) + 2
