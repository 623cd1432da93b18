"""dstack: a backend of its server's configuration.

It knows only the published domain, so its calls have to go through the redirector.
"""

import json

import yaml

from neocloud.cli.clients.plan import Plan, PlannedFile, Target


def plan(target: Target) -> Plan:
    subject = json.loads(target.credentials)["subject-credentials"]
    credentials = {
        "type": "service_account",
        "service_account_id": subject["sub"],
        "public_key_id": subject["kid"],
        "private_key_file": "~/.nebius/neocloud.pem",
    }
    backend = {"type": "nebius", "projects": [target.project_id], "creds": credentials}
    document = {"projects": [{"name": "main", "backends": [backend]}]}
    return Plan(
        files=(
            PlannedFile(".nebius/neocloud.pem", subject["private-key"], is_secret=True),
            PlannedFile(".dstack/server/config.yml", yaml.safe_dump(document, sort_keys=False)),
        ),
        next_steps=(
            "Start its server so that its calls come here:",
            f"grpc_proxy=http://{target.redirector} dstack server",
        ),
    )
