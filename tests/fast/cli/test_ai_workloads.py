"""`neo ai endpoint create NAME --image I --port 8000`: what is left out has a default."""

from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import FakeServer, operation
from tests.fast.cli.test_help import commands

ENDPOINTS, JOBS = "nebius.ai.v1.EndpointService", "nebius.ai.v1.JobService"
PLATFORMS = "nebius.compute.v1.PlatformService/List"
ID = "aiendpoint-e00web"
SHAPES = {
    "metadata": {"name": "cpu-local"},
    "spec": {
        "presets": [
            {"name": "2vcpu-4gb", "resources": {"vcpu_count": 2, "memory_gibibytes": 4}},
            {"name": "1vcpu-1gb", "resources": {"vcpu_count": 1, "memory_gibibytes": 1}},
        ]
    },
}


@pytest.fixture
def served(cloud: FakeServer) -> FakeServer:
    listed = contract.from_dict(contract.method(PLATFORMS).output, {"items": [SHAPES]})
    cloud.serve(PLATFORMS, listed)
    for service, kind in ((ENDPOINTS, "Endpoint"), (JOBS, "Job")):
        made = contract.from_dict(contract.message(f"nebius.ai.v1.{kind}"), {"metadata": {"id": ID}})
        cloud.serve(f"{service}/Create", operation(ID))
        cloud.serve(f"{service}/Get", made)
    return cloud


@pytest.mark.parametrize(("noun", "service"), [("endpoint", ENDPOINTS), ("job", JOBS)])
def test_an_image_and_a_port_are_enough(signed_in: Neo, served: FakeServer, noun: str, service: str) -> None:
    """FI-38: four tries were needed."""
    ran = signed_in("ai", noun, "create", "n-ep", "--image", "h/r/web:v1", "--port", "8000")
    assert ran.code == 0, ran.err
    assert "It gets 1vcpu-1gb on cpu-local; --platform and --preset name others." in ran.err
    [request] = served.asked(f"{service}/Create")
    spec: Any = contract.to_document(request)["spec"]
    assert spec["ports"] == [{"container_port": 8000, "protocol": "HTTP"}]
    assert (spec["platform"], spec["preset"]) == ("cpu-local", "1vcpu-1gb")
    assert spec["disk"] == {"type": "NETWORK_SSD"}


def test_what_is_named_stays(signed_in: Neo, served: FakeServer) -> None:
    words = (
        "--ports",
        '{"container_port": 53, "protocol": "UDP"}',
        "--port",
        "8000",
        "--preset",
        "2vcpu-4gb",
    )
    ran = signed_in(
        "ai", "endpoint", "create", "dns", "--image", "h/r/dns:v1", *words, "--disk-type", "NETWORK_HDD"
    )
    assert ran.code == 0, ran.err
    [request] = served.asked(f"{ENDPOINTS}/Create")
    spec: Any = contract.to_document(request)["spec"]
    assert [(port["container_port"], port["protocol"]) for port in spec["ports"]] == [
        (53, "UDP"),
        (8000, "HTTP"),
    ]
    assert spec["preset"] == "2vcpu-4gb" and spec["disk"]["type"] == "NETWORK_HDD"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("http", "'http' is not a whole number"),
        ("80:8000", "'80:8000' is not a whole number"),
        ('{"container_port": "x"}', "An option has a value of another form"),
        ('{"port": 8000}', "An option has a value of another form"),
        ("[8000]", "An option has a value of another form"),
    ],
)
def test_a_wrong_port_is_an_option_and_no_body(
    signed_in: Neo, served: FakeServer, value: str, said: str
) -> None:
    ran = signed_in("ai", "endpoint", "create", "n-ep", "--image", "h/r/web:v1", "--port", value)
    assert ran.code == 2 and said in ran.err, ran.err
    assert "body" not in ran.err and not served.asked(f"{ENDPOINTS}/Create")


def test_what_this_cloud_refuses_is_not_in_help() -> None:
    for noun in ("endpoint", "job"):
        shown = [each.opts[0] for each in commands()["neo", "ai", noun, "create"].params if not each.hidden]
        assert not [option for option in shown if "credentials" in option or "auth-token" in option]
        assert "--ports" in shown and "--image" in shown
