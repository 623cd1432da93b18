"""Manifests that all engines take and refuse, before they touch anything."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neocloud.engines.base import EngineError
from neocloud.engines.manifest import (
    ManifestError,
    NetworkPolicy,
    Pod,
    Secret,
    fingerprint,
    in_order,
    quantity,
    read_manifest,
)
from neocloud.engines.manifest.base import check_name


def manifest(kind: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "one", "namespace": "space"}, **fields}


def pod(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    main = {"name": "main", "image": "busybox", **(container or {})}
    return manifest("Pod", spec={"containers": [main], **spec})


@pytest.mark.parametrize(
    ("text", "value"),
    [("2", "2"), ("500m", "0.5"), ("1.5", "1.5"), ("4Gi", str(4 * 2**30)), ("3k", "3000"), ("1T", "1e12")],
)
def test_quantities_are_read_exactly(text: str, value: str) -> None:
    assert quantity(text, "cpu") == Decimal(value)


@pytest.mark.parametrize("text", ["", "-1", "1e3", "4 Gi", "4gb", "many", None, "NaN", "1" * 5 + "X"])
def test_absurd_quantities_are_named(text: object) -> None:
    with pytest.raises(EngineError, match="cpu is"):
        quantity(text, "cpu")


@given(st.text())
def test_accepted_names_never_leave_their_folder(name: str) -> None:
    try:
        check_name(name, "name")
    except EngineError:
        return
    assert "/" not in name and ".." not in name and name.strip() == name and name.isascii()


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a_b", "a/b", "a..b", "x" * 254, 5, None, "a\n"])
def test_unusable_names_are_refused(name: object) -> None:
    with pytest.raises(EngineError, match="not valid"):
        check_name(name, "Pod name")


def test_objects_are_applied_namespace_first_and_pod_last() -> None:
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    claim = manifest("PersistentVolumeClaim", spec=size)
    namespace = {"kind": "Namespace", "metadata": {"name": "space"}}
    ordered = in_order([read_manifest(each) for each in (pod(), manifest("Secret"), claim, namespace)])
    assert [each.kind for each in ordered] == ["Namespace", "Secret", "PersistentVolumeClaim", "Pod"]


def test_fingerprint_knows_content_and_not_order() -> None:
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert fingerprint({"a": 1, "b": [1, 2]}) != fingerprint({"a": 1, "b": [2, 1]})


def test_secret_data_is_decoded_and_plain_data_wins() -> None:
    secret = Secret.from_dict(manifest("Secret", data={"a": "AAEC", "b": "AAEC"}, stringData={"b": "text"}))
    assert secret.contents == {"a": b"\x00\x01\x02", "b": b"text"}


@pytest.mark.parametrize(
    "broken",
    [
        manifest("Secret", data={"a": "no base64!"}),
        manifest("Secret", data={"a": 5}),
        manifest("ConfigMap", data={"a": 5}),
        manifest("ConfigMap", data={"../a": "x"}),
        manifest("ConfigMap", data={"..": "x"}),
        manifest("NetworkPolicy", spec={"podSelector": {"matchLabels": {"a": "b"}}}),
        manifest("NetworkPolicy", spec={"podSelector": {}, "ingress": []}),
        manifest(
            "NetworkPolicy",
            spec={
                "podSelector": {},
                "ingress": [{"from": [{"podSelector": {}}]}],
                "egress": [{"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}],
            },
        ),
        pod(restartPolicy="Sometimes"),
        pod(terminationGracePeriodSeconds=-1),
        pod(hostPID=True),
        pod(initContainers=[]),
        pod({"image": "two words"}),
        pod({"lifecycle": {}}),
        pod({"ports": [{"containerPort": 0}]}),
        pod({"ports": [{"containerPort": 80, "hostPort": 70000}]}),
        pod({"resources": {"limits": {"cpu": "-1"}}}),
        pod({"resources": {"limits": {"cpu": "0"}}}),
        pod({"resources": {"limits": {"amd.com/gpu": 1}}}),
        pod({"volumeMounts": [{"name": "absent", "mountPath": "/x"}]}),
        pod({"readinessProbe": {"httpGet": {"port": 80, "scheme": "HTTPS"}}}),
        pod({"readinessProbe": {"httpGet": {"port": 80, "path": "health"}}}),
        pod({"readinessProbe": {"exec": {"command": []}}}),
        pod({"env": [{"name": "A=B", "value": "x"}]}),
        pod({"securityContext": {"procMount": "Unmasked"}}),
        pod({"securityContext": {"privileged": True}}),
        pod({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}),
        pod({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "x.json"}}}),
        pod(securityContext={"seccompProfile": {"type": "Unconfined"}}),
        pod(volumes=[{"name": "v", "nfs": {}}]),
        pod(volumes=[{"name": "v", "hostPath": {"path": "relative"}}]),
        pod(volumes=[{"name": "v", "hostPath": {"path": "/etc/passwd", "type": "CharDevice"}}]),
        pod(volumes=[{"name": "v", "hostPath": {"path": "/dev/../etc/x", "type": "CharDevice"}}]),
        manifest("PersistentVolumeClaim", spec={"dataSourceRef": {"kind": "VolumeSnapshot", "name": "x"}}),
        manifest("PersistentVolumeClaim", spec={"dataSourceRef": {"kind": "MachineImage", "name": "../x"}}),
        manifest(
            "PersistentVolumeClaim", spec={"dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "one"}}
        ),
        pod(volumes=[{"name": "v", "emptyDir": {"medium": "HugePages"}}]),
        pod(volumes=[{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "../p"}]}}]),
    ],
    ids=str,
)
def test_what_no_engine_can_do_is_refused_with_a_reason(broken: dict[str, Any]) -> None:
    with pytest.raises(ManifestError) as caught:
        read_manifest(broken)
    assert len(str(caught.value)) > 20 and "Traceback" not in str(caught.value)


def test_same_object_twice_is_refused() -> None:
    with pytest.raises(ManifestError, match="twice"):
        in_order([read_manifest(manifest("ConfigMap")), read_manifest(manifest("ConfigMap"))])


def test_policy_that_allows_the_own_namespace_is_taken() -> None:
    ingress = [{"from": [{"podSelector": {}}]}]
    policy = manifest("NetworkPolicy", spec={"podSelector": {}, "ingress": ingress, "egress": [{}]})
    assert not NetworkPolicy.from_dict(policy).denies_egress


def test_policy_that_denies_egress_is_told_from_one_that_does_not() -> None:
    same = [{"podSelector": {}}]
    ingress = {"podSelector": {}, "ingress": [{"from": same}]}
    for changes, denies in (
        ({}, False),
        ({"policyTypes": ["Ingress"]}, False),
        ({"egress": [{}]}, False),
        ({"policyTypes": ["Ingress", "Egress"], "egress": [{}]}, False),
        ({"policyTypes": ["Ingress", "Egress"]}, True),
        ({"policyTypes": ["Ingress", "Egress"], "egress": []}, True),
        ({"egress": [{"to": same}]}, True),
    ):
        policy = manifest("NetworkPolicy", spec={**ingress, **changes})
        read = NetworkPolicy.from_dict(policy)
        assert read.denies_egress is denies and NetworkPolicy.from_dict(read.to_dict()) == read


def test_the_default_filter_of_system_calls_may_be_named() -> None:
    default = {"seccompProfile": {"type": "RuntimeDefault"}}
    assert read_manifest(pod({"securityContext": default}, securityContext=default))


def test_fields_for_a_fleet_scheduler_are_let_through() -> None:
    fleet = pod(tolerations=[{"operator": "Exists"}], nodeSelector={"a": "b"})
    assert Pod.from_dict(fleet).spec() == fleet["spec"]


def test_pod_needs_what_it_mounts_and_reads_unless_optional() -> None:
    needy = pod(
        {
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
            "envFrom": [{"configMapRef": {"name": "c"}}],
        },
        volumes=[
            {"name": "v", "persistentVolumeClaim": {"claimName": "p"}},
            {"name": "w", "secret": {"secretName": "o", "optional": True}},
        ],
    )
    read = Pod.from_dict(needy)
    needed = {(reference.kind, reference.name) for reference in read.required_objects}
    assert needed == {("Secret", "s"), ("ConfigMap", "c"), ("PersistentVolumeClaim", "p")}
    assert read.environment_objects("Secret") == {"s"}


def claims(**places: str) -> dict[str, Any]:
    volumes = [{"name": f"v-{name}", "persistentVolumeClaim": {"claimName": name}} for name in places]
    written = pod(volumes=volumes)
    elsewhere = {name: place for name, place in places.items() if place}
    written["metadata"]["annotations"] = {"neocloud.dev/claims": json.dumps(elsewhere)}
    return written


def test_claims_of_other_namespaces_are_an_annotation() -> None:
    read = Pod.from_dict(claims(one="", two="elsewhere"))
    assert {(claim.namespace, claim.name) for claim in read.mounted_claims} == {
        ("space", "one"),
        ("elsewhere", "two"),
    }
    assert read.to_dict()["metadata"]["annotations"] == {"neocloud.dev/claims": '{"two": "elsewhere"}'}
    assert Pod.from_dict(read.to_dict()) == read


@pytest.mark.parametrize("text", ["", "[]", '{"../x": "space"}', '{"one": "a/b"}', '{"one": 5}'])
def test_an_annotation_of_claims_that_cannot_be_read_is_named(text: str) -> None:
    broken = claims(one="")
    broken["metadata"]["annotations"]["neocloud.dev/claims"] = text
    with pytest.raises(ManifestError, match="neocloud.dev/claims"):
        Pod.from_dict(broken)


def test_an_error_names_the_object_and_the_field() -> None:
    with pytest.raises(ManifestError, match=r"^Pod one: containers\[0\].ports\[0\].containerPort is 0"):
        read_manifest(pod({"ports": [{"containerPort": 0}]}))


WHOLE = pod(
    {
        "command": ["a"],
        "args": [],
        "env": [],
        "ports": [{"containerPort": 80, "hostIP": "127.0.0.1", "hostPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": 2, "memory": "1Gi", "nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}},
        "securityContext": {"capabilities": {"add": ["NET_RAW"], "drop": ["ALL"]}, "runAsUser": 0},
        "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "x", "readOnly": True}],
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 0.5, "initialDelaySeconds": 0},
    },
    hostUsers=False,
    restartPolicy="Always",
    terminationGracePeriodSeconds=0,
    securityContext={"sysctls": [{"name": "net.ipv4.ip_forward", "value": "1"}], "supplementalGroups": [5]},
    volumes=[{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}],
)


def test_what_was_written_is_read_as_the_same_pod() -> None:
    """A running pod keeps its fingerprint, also one whose manifest an earlier release wrote."""
    read = Pod.from_dict(WHOLE)
    assert Pod.from_dict(read.to_dict()) == read
    del WHOLE["spec"]["containers"][0]["args"]
    assert read.spec() == WHOLE["spec"] and read.fingerprint == fingerprint(WHOLE["spec"])
