"""SkyPilot: its Nebius cloud reads three small files in `~/.nebius`."""

from neocloud.cli.clients.plan import Plan, PlannedFile, Target

CATALOG = ".sky/catalogs/v8/nebius/vms.csv"
"""Where SkyPilot 0.14 keeps its copy of the published price list."""
_NO_MACHINES = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
)


def plan_for_this_cloud_only(target: Target) -> Plan:
    """Return a plan with an empty published list: SkyPilot shows only this cloud's machines, offline."""
    usual = plan(target)
    return Plan((*usual.files, PlannedFile(CATALOG, _NO_MACHINES)), usual.next_steps)


def plan(target: Target) -> Plan:
    return Plan(
        files=(
            PlannedFile(".nebius/credentials.json", target.credentials, is_secret=True),
            PlannedFile(".nebius/NEBIUS_TENANT_ID.txt", target.tenant_id + "\n"),
            PlannedFile(".nebius/NEBIUS_DOMAIN.txt", target.address + "\n"),
        ),
        next_steps=(
            "Stop its API server so that it reads the files again: sky api stop",
            "Check: sky check nebius",
            "Launch: sky launch --infra nebius --cpus 1+ -- echo hello",
        ),
    )
