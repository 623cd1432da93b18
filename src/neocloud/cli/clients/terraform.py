"""Terraform: an override file beside the configuration, so that the configuration itself stays as it is."""

import json

from neocloud.cli.clients.plan import Plan, PlannedFile, Target

OVERRIDE = "neocloud_override.tf.json"


def plan(target: Target) -> Plan:
    subject = json.loads(target.credentials)["subject-credentials"]
    account = {
        "account_id": subject["sub"],
        "public_key_id": subject["kid"],
        "private_key_file": "~/.nebius/neocloud.pem",
    }
    provider = {"domain": target.address, "service_account": account}
    return Plan(
        files=(
            PlannedFile(".nebius/neocloud.pem", subject["private-key"], is_secret=True),
            PlannedFile(f"./{OVERRIDE}", json.dumps({"provider": {"nebius": provider}}, indent=2) + "\n"),
        ),
        next_steps=(
            f"Keep {OVERRIDE} beside your *.tf files",
            f"export SSL_CERT_FILE={target.authority}    # or, once: neo client-config trust",
        ),
    )
