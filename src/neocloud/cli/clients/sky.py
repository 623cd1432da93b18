"""SkyPilot: its Nebius cloud reads three small files in `~/.nebius`."""

from neocloud.cli.clients.plan import Plan, PlannedFile, Target


def plan(target: Target) -> Plan:
    return Plan(
        files=(
            PlannedFile(".nebius/credentials.json", target.credentials, is_secret=True),
            PlannedFile(".nebius/NEBIUS_TENANT_ID.txt", target.tenant_id + "\n"),
            PlannedFile(".nebius/NEBIUS_DOMAIN.txt", target.address + "\n"),
        ),
        next_steps=(
            "Start its server anew: sky api stop",
            "Check: sky check nebius",
            "Launch: sky launch --infra nebius --cpus 1+ -- echo hello",
        ),
    )
