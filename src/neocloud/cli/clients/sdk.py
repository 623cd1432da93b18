"""The official `nebius` SDK: a profile file of its own, which `Config()` reads."""

import yaml

from neocloud.cli.clients.plan import Plan, PlannedFile, Target

PROFILE = "neocloud"


def plan(target: Target) -> Plan:
    profile = {
        "endpoint": target.address,
        "auth-type": "service account",
        "service-account-credentials-file-path": "~/.nebius/neocloud-credentials.json",
        "parent-id": target.project_id,
        "tenant-id": target.tenant_id,
    }
    document = {"default": PROFILE, "profiles": {PROFILE: profile}}
    return Plan(
        files=(
            PlannedFile(".nebius/neocloud-credentials.json", target.credentials, is_secret=True),
            PlannedFile(".nebius/config.yaml", yaml.safe_dump(document, sort_keys=False)),
        ),
        next_steps=("In Python: SDK(config_reader=nebius.aio.cli_config.Config())",),
    )
