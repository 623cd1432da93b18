"""The coverage page says what is: it is not stale, and what it is made of is read rightly."""

from neocloud.control_plane.api_coverage import Served, calls_in_source, coverage, present_page
from neocloud.control_plane.composition import SERVICES
from tests import ROOT

PAGE = ROOT / "docs" / "reference" / "coverage.md"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == present_page(), "Run `make docs` and commit the result."


def test_each_method_is_one_of_three() -> None:
    found = coverage(SERVICES)
    assert found["nebius.compute.v1.InstanceService/Create"] is Served.DATA_PLANE
    assert found["nebius.vpc.v1.SecurityRuleService/Create"] is Served.DATA_PLANE, "its group is made true"
    assert found["nebius.compute.v1.InstanceService/Get"] is Served.RECORD, "a read"
    assert found["nebius.iam.v1.ServiceAccountService/Create"] is Served.RECORD
    assert found["nebius.mk8s.v1.ClusterService/Create"] is Served.UNIMPLEMENTED
    assert found["neocloud.emulator.v1.FaultService/Inject"] is Served.UNIMPLEMENTED, "by a real cloud"


def test_calls_are_found_in_sources() -> None:
    source = """
from nebius.api.nebius.compute.v1 import DiskServiceClient, GetDiskRequest
COMPUTE, VPC = "nebius.compute.v1", "nebius.vpc.v1"
TIER_1 = ("nebius.iam.v1.ProfileService", f"{COMPUTE}.PlatformService")
LEFT_OUT = {f"{COMPUTE}.PlatformService/List": "why"}
async def test(api): await api(f"{VPC}.SubnetService/Create")
"""
    assert calls_in_source(source) == {
        "nebius.compute.v1.DiskService/Get",
        "nebius.compute.v1.PlatformService/GetByName",
        "nebius.iam.v1.ProfileService/Get",
        "nebius.vpc.v1.SubnetService/Create",
    }
