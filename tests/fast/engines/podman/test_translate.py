"""Pods become libpod container specs; no Podman is asked."""

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import Pod
from neocloud.engines.podman.gpus.cdi import Device
from neocloud.engines.podman.layout import Layout
from neocloud.engines.podman.libpod import full_image_name
from neocloud.engines.podman.translate import Resolved, container_specs, expand

LAYOUT = Layout.of(Path("/var/lib/neocloud"))
RESOLVED = Resolved(
    address=IPv4Address("10.89.1.5"),
    hosts_file=Path("/n/hosts"),
    volumes={"data": Path("/v/data")},
    sub_paths={("data", "in"): Path("/run/sub-paths/in")},
    secrets={"login": {"token": b"t0"}},
    config_maps={"settings": {"level": b"debug"}},
    devices={"main": (Device("GPU-a", "nvidia.com/gpu=0"), Device("GPU-c", "nvidia.com/gpu=2"))},
)


VOLUMES = [{"name": "data", "emptyDir": {}}]


def pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    named = [{"name": "main", "image": "busybox", **container} for container in containers or ({},)]
    metadata = {"name": "one", "namespace": "space"}
    return Pod.from_dict({"metadata": metadata, "spec": {"containers": named, **spec}})


def specs(*containers: dict[str, Any], **spec: Any) -> list[dict[str, Any]]:
    return container_specs(pod(*containers, **spec), RESOLVED, LAYOUT)


def test_pod_with_one_container_is_one_container_with_its_own_network() -> None:
    (spec,) = specs(hostname="host")
    assert spec["name"] == "space.one.main"
    assert spec["hostname"] == "host"
    assert spec["netns"] == {"nsmode": "bridge"}
    assert spec["Networks"] == {f"neocloud-{LAYOUT.id}-space": {"static_ips": ["10.89.1.5"]}}
    assert spec["init"] and spec["restart_policy"] == "always" and spec["stop_timeout"] == 30
    assert spec["labels"]["neocloud.network"] == "owner"


def test_several_containers_share_the_network_of_a_sandbox() -> None:
    sandbox, main, side = specs({}, {"name": "side"}, shareProcessNamespace=True)
    assert sandbox["name"] == "space.one._" and "static_ips" in str(sandbox["Networks"])
    for spec in (main, side):
        assert spec["netns"] == spec["pidns"] == {"nsmode": "container", "value": "space.one._"}
        assert "Networks" not in spec and not spec["init"]
    assert sandbox["labels"]["neocloud.network"] == "owner"
    assert "neocloud.network" not in main["labels"]


def test_command_replaces_the_entrypoint_and_arguments_the_command() -> None:
    assert "entrypoint" not in specs({"args": ["-v"]})[0]
    (spec,) = specs(
        {"command": ["run"], "args": ["-v", "$(LEVEL)"], "env": [{"name": "LEVEL", "value": "3"}]}
    )
    assert (spec["entrypoint"], spec["command"]) == (["run"], ["-v", "3"])


def test_environment_is_looked_up_and_expanded() -> None:
    env = [
        {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "login", "key": "token"}}},
        {"name": "URL", "value": "http://$(IP)/$(POD)?$(NONE)"},
    ]
    source = [{"prefix": "SET_", "configMapRef": {"name": "settings"}}]
    assert specs({"env": env, "envFrom": source})[0]["env"] == {
        "POD": "one",
        "IP": "10.89.1.5",
        "TOKEN": "t0",
        "URL": "http://10.89.1.5/one?$(NONE)",
        "SET_level": "debug",
    }


@pytest.mark.parametrize(
    "source",
    [
        {"fieldRef": {"fieldPath": "spec.nodeName"}},
        {"secretKeyRef": {"name": "login", "key": "absent"}},
        {"resourceFieldRef": {"resource": "limits.cpu"}},
        {},
    ],
)
def test_environment_that_cannot_be_looked_up_is_refused(source: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="Pod one"):
        specs({"env": [{"name": "A", "valueFrom": source}]})


def test_two_dollars_stand_for_one() -> None:
    assert expand("$$(A) $(A) $(B) $", {"A": "a"}) == "$(A) a $(B) $"


def test_limits_become_quota_and_bytes() -> None:
    (spec,) = specs({"resources": {"limits": {"cpu": "1500m", "memory": "2Gi"}, "requests": {"cpu": "1"}}})
    assert spec["resource_limits"] == {
        "cpu": {"quota": 150_000, "period": 100_000},
        "memory": {"limit": 2 * 2**30},
    }


def test_cpus_of_its_own_are_a_cpuset_and_a_label() -> None:
    given = pod({"resources": {"limits": {"cpu": "2"}}})
    (spec,) = container_specs(given, replace(RESOLVED, cpus={"main": "2,3"}), LAYOUT)
    assert spec["resource_limits"]["cpu"] == {"quota": 200_000, "period": 100_000, "cpus": "2,3"}
    assert spec["labels"]["neocloud.cpus"] == "2,3"


def test_gpus_are_named_as_the_container_device_interface_does() -> None:
    (spec,) = specs({"resources": {"limits": {"nvidia.com/gpu": 2}}})
    assert spec["devices"] == [{"path": "nvidia.com/gpu=0"}, {"path": "nvidia.com/gpu=2"}]
    assert spec["labels"]["neocloud.gpus"] == "GPU-a,GPU-c"
    assert "r_limits" not in spec


def test_a_virtual_machine_with_a_device_by_vfio_may_lock_its_memory() -> None:
    volumes = [{"name": "group", "hostPath": {"path": "/dev/vfio/7", "type": "CharDevice"}}]
    (spec,) = specs({"volumeMounts": [{"name": "group", "mountPath": "/dev/vfio/7"}]}, volumes=volumes)
    assert {"path": "/dev/vfio/7:/dev/vfio/7:rw"} in spec["devices"]
    assert spec["r_limits"] == [{"type": "memlock", "soft": 2**64 - 1, "hard": 2**64 - 1}]


def test_published_ports_stay_on_loopback_unless_told_otherwise() -> None:
    ports = [
        {"containerPort": 80, "hostPort": 8080},
        {"containerPort": 53, "hostPort": 5353, "hostIP": "192.0.2.1", "protocol": "UDP"},
        {"containerPort": 9},
    ]
    published = specs({"ports": ports})[0]["portmappings"]
    assert [(p["host_ip"], p["host_port"], p["protocol"]) for p in published] == [
        ("127.0.0.1", 8080, "tcp"),
        ("192.0.2.1", 5353, "udp"),
    ]


def test_mounts_carry_access_and_propagation() -> None:
    mount = {
        "name": "data",
        "mountPath": "/d",
        "readOnly": True,
        "subPath": "in",
        "mountPropagation": "Bidirectional",
    }
    mounts = {m["destination"]: m for m in specs({"volumeMounts": [mount]}, volumes=VOLUMES)[0]["mounts"]}
    assert mounts["/d"]["source"] == "/run/sub-paths/in"
    assert mounts["/d"]["options"] == ["rbind", "ro", "rshared"]
    assert mounts["/etc/hosts"]["source"] == "/n/hosts"
    assert "ro" in mounts["/etc/hosts"]["options"]


def test_security_of_the_container_wins_over_that_of_the_pod() -> None:
    security = {
        "runAsUser": 0,
        "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
    }
    pod_security = {
        "runAsUser": 5,
        "runAsGroup": 6,
        "sysctls": [{"name": "net.core.somaxconn", "value": "9"}],
    }
    (spec,) = specs({"securityContext": security}, securityContext=pod_security)
    assert (spec["user"], spec["cap_add"], spec["cap_drop"]) == ("0:6", ["CAP_NET_ADMIN"], ["ALL"])
    assert spec["read_only_filesystem"] and spec["no_new_privileges"]
    assert spec["sysctl"] == {"net.core.somaxconn": "9"}


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("slurm", "localhost/slurm:latest"),
        ("neocloud/slurm", "localhost/neocloud/slurm:latest"),
        ("neocloud/slurm:3", "localhost/neocloud/slurm:3"),
        ("localhost/a", "localhost/a:latest"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b:latest"),
        ("nvcr.io/a@sha256:0", "nvcr.io/a@sha256:0"),
    ],
)
def test_images_without_a_registry_are_local(name: str, full: str) -> None:
    assert full_image_name(name) == full


def test_character_devices_are_handed_over_where_they_are_mounted() -> None:
    tun = {"name": "tun", "hostPath": {"path": "/dev/net/tun", "type": "CharDevice"}}
    mounts = [{"name": "tun", "mountPath": "/dev/net/tun"}, {"name": "data", "mountPath": "/data"}]
    spec, other = specs({"volumeMounts": mounts}, {"name": "side"}, volumes=[tun, *VOLUMES])[1:]
    assert spec["devices"][-1:] == [{"path": "/dev/net/tun:/dev/net/tun:rw"}]
    assert [mount["destination"] for mount in spec["mounts"]][4:] == ["/data"]
    assert other["devices"] == []
