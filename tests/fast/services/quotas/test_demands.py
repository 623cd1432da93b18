"""Demands of the services and the quota file agree. QUOTA-01."""

import pytest

from neocloud.control_plane.composition import SERVICES
from neocloud.core import contract
from neocloud.core.kind import Kind, Rules
from neocloud.services.compute.public import platforms
from neocloud.services.quotas.rules import default_quotas

KINDS = [
    kind
    for service in SERVICES
    for kind in service.kinds
    if type(kind.rules).quota_demand is not Rules.quota_demand
]


def samples(kind: Kind) -> list:
    """Resources of a kind in their shapes: each platform and preset, each type of storage."""
    resource = contract.message(kind.message)()
    resource.metadata.parent_id = "project-e00a"
    shapes = {"nebius.compute.v1.Instance": "resources", "nebius.ai.v1.Endpoint": "", "nebius.ai.v1.Job": ""}
    if kind.message in shapes:
        field, found = shapes[kind.message], []
        for platform in platforms().values():
            for preset in platform.presets:
                shape = getattr(resource.spec, field) if field else resource.spec
                shape.platform, shape.preset = platform.name, preset
                found.append(type(resource).FromString(resource.SerializeToString()))
        return found
    type_field = resource.spec.DESCRIPTOR.fields_by_name.get("type")
    if kind.message.startswith("nebius.compute.v1.") and type_field is not None and type_field.enum_type:
        found = []
        for name in ("NETWORK_SSD", "NETWORK_HDD"):
            resource.spec.type = type_field.enum_type.values_by_name[name].number
            resource.spec.size_gibibytes = 1
            found.append(type(resource).FromString(resource.SerializeToString()))
        return found
    return [resource]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.message)
def test_each_demand_is_of_a_quota_that_there_is(kind: Kind) -> None:
    for resource in samples(kind):
        demand = kind.rules.quota_demand(resource)
        assert demand
        for name, units in demand.items():
            assert name in default_quotas(), f"{kind.message} asks for {name}: add it to quotas.yaml"
            assert isinstance(units, int) and units >= 0


def test_most_kinds_ask_for_something() -> None:
    assert len(KINDS) >= 20
