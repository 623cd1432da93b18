"""A preset that does not hold a model is refused with its size, the model's, and the smallest that fits."""

from typing import Any

import pytest

from neocloud.core import contract
from tests.fast.cli.conftest import Neo
from tests.fast.cli.fake_control_plane import PROJECT, FakeServer

MODELS = "neocloud.inference.v1.ModelService"
PLATFORMS = "nebius.compute.v1.PlatformService/List"
SHAPES = {
    "cpu-local": {"1vcpu-2gb": (2, 0), "1vcpu-4gb": (4, 0), "2vcpu-16gb": (16, 0)},
    "gpu-local": {"1gpu-2vcpu-8gb": (8, 1)},
    **{f"gpu-far-{number}": {"8gpu-128vcpu-1600gb": (1600, 8)} for number in range(10)},
}
"""Twelve platforms, of which the error of before named each."""


@pytest.fixture
def shapes(cloud: FakeServer) -> FakeServer:
    items = [
        {
            "metadata": {"name": platform},
            "spec": {
                "presets": [
                    {"name": name, "resources": {"memory_gibibytes": gib, "gpu_count": gpus}}
                    for name, (gib, gpus) in presets.items()
                ]
            },
        }
        for platform, presets in SHAPES.items()
    ]
    cloud.serve(PLATFORMS, contract.from_dict(contract.method(PLATFORMS).output, {"items": items}))
    return cloud


def serve_model(cloud: FakeServer, gib: float) -> None:
    document = {
        "metadata": {"id": "inferencemodel-e00base", "parent_id": PROJECT, "name": "n-base"},
        "status": {"size_bytes": str(int(gib * 1024**3))},
    }
    model: Any = contract.from_dict(contract.message("neocloud.inference.v1.Model"), document)
    cloud.serve(f"{MODELS}/GetByName", model)


def refused(signed_in: Neo, *options: str) -> str:
    ran = signed_in("deploy", "n-base", *options)
    assert ran.code == 2 and not ran.out
    assert "gpu-far" not in ran.err, "platforms that nobody asked for are not named"
    return ran.err


def test_a_preset_that_is_too_small_is_told_with_the_smallest_that_fits(
    signed_in: Neo, shapes: FakeServer
) -> None:
    serve_model(shapes, 0.3)
    assert refused(signed_in, "--preset", "1vcpu-2gb") == (
        "neo: 1vcpu-2gb has 2 GiB; n-base needs 3 GiB. Smallest that fits: --platform gpu-local --preset"
        " 1gpu-2vcpu-8gb or --platform cpu-local --preset 1vcpu-4gb; `neo capacity` lists all.\n"
    )


def test_of_a_platform_that_was_named_no_other_is_offered(signed_in: Neo, shapes: FakeServer) -> None:
    serve_model(shapes, 10)
    said = refused(signed_in, "--platform", "gpu-local")
    assert said == "neo: n-base needs 13 GiB. `neo capacity` lists the presets.\n"


def test_a_platform_that_is_nowhere_is_not_too_small(signed_in: Neo, shapes: FakeServer) -> None:
    serve_model(shapes, 0.3)
    ran = signed_in("deploy", "n-base", "--platform", "cpu-lokal")
    assert ran.code == 2 and "GiB" not in ran.err
    assert ran.err.startswith(
        "neo: There is no platform 'cpu-lokal'. The closest of 12 names are: cpu-local,"
    )


def test_a_model_that_nothing_holds_says_how_much_it_needs(signed_in: Neo, shapes: FakeServer) -> None:
    serve_model(shapes, 100)
    said = refused(signed_in)
    assert said == "neo: n-base needs 103 GiB. `neo capacity` lists the presets.\n"


def test_a_preset_that_is_nowhere_is_said_to_be_nowhere(signed_in: Neo, shapes: FakeServer) -> None:
    serve_model(shapes, 0.3)
    said = refused(signed_in, "--preset", "3vcpu-9gb")
    assert "there is no preset '3vcpu-9gb' here" in said and "--preset 1vcpu-4gb" in said
