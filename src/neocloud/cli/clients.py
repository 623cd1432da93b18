"""Configuration files of other clients: the official SDK, SkyPilot, dstack and Terraform.

Pure text, from a `Target` to a `Plan`; `commands/client_config.py` writes the files.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Target:
    """The cloud to point at. `address` is host:port of TLS under the domain, as `api.localhost:7372`."""

    address: str
    redirector: str
    credentials: str
    """Text of the service account's credentials file."""
    service_account_id: str
    tenant_id: str
    project_id: str
    authority: Path
    """Certificate that the client's machine has to trust."""


@dataclass(frozen=True)
class PlannedFile:
    """A file to write, below the home directory; one that starts with `./` lies where the user works."""

    path: str
    content: str
    is_secret: bool = False


@dataclass(frozen=True)
class Plan:
    files: tuple[PlannedFile, ...]
    next_steps: tuple[str, ...]


SDK_PROFILE = "neocloud"


def sdk_plan(target: Target) -> Plan:
    profile = {
        "endpoint": target.address,
        "auth-type": "service account",
        "service-account-credentials-file-path": "~/.nebius/neocloud-credentials.json",
        "parent-id": target.project_id,
        "tenant-id": target.tenant_id,
    }
    document = {"default": SDK_PROFILE, "profiles": {SDK_PROFILE: profile}}
    return Plan(
        files=(
            PlannedFile(".nebius/neocloud-credentials.json", target.credentials, is_secret=True),
            PlannedFile(".nebius/config.yaml", yaml.safe_dump(document, sort_keys=False)),
        ),
        next_steps=("In Python: SDK(config_reader=nebius.aio.cli_config.Config())",),
    )


SKY_CATALOG = ".sky/catalogs/v8/nebius/vms.csv"
"""Where SkyPilot 0.14 keeps its copy of the published price list."""
_NO_MACHINES = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice\n"
)


def sky_plan_for_this_cloud_only(target: Target) -> Plan:
    """Return a plan with an empty published list: SkyPilot shows only this cloud's machines, offline."""
    usual = sky_plan(target)
    return Plan((*usual.files, PlannedFile(SKY_CATALOG, _NO_MACHINES)), usual.next_steps)


def sky_plan(target: Target) -> Plan:
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


def dstack_plan(target: Target) -> Plan:
    """Return a backend for the dstack server, whose calls go through the redirector.

    dstack knows only the published domain.
    """
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


def is_local(address: str) -> bool:
    """Return whether the host is a name below localhost, which means this machine without a name server."""
    return address.rpartition(":")[0].endswith(".localhost")


TERRAFORM_OVERRIDE = "neocloud_override.tf.json"


def terraform_plan(target: Target) -> Plan:
    """Return an override file beside the configuration, which itself stays unchanged."""
    subject = json.loads(target.credentials)["subject-credentials"]
    account = {
        "account_id": subject["sub"],
        "public_key_id": subject["kid"],
        "private_key_file": "~/.nebius/neocloud.pem",
    }
    # Go asks a name server for names below localhost, which no name server knows.
    port = target.address.rpartition(":")[2]
    resolvers = {"resolvers": {"*": f"localhost:{port}"}} if is_local(target.address) else {}
    provider = {"domain": target.address, **resolvers, "service_account": account}
    return Plan(
        files=(
            PlannedFile(".nebius/neocloud.pem", subject["private-key"], is_secret=True),
            PlannedFile(
                f"./{TERRAFORM_OVERRIDE}", json.dumps({"provider": {"nebius": provider}}, indent=2) + "\n"
            ),
        ),
        next_steps=(
            f"Keep {TERRAFORM_OVERRIDE} beside your *.tf files",
            f"export SSL_CERT_FILE={target.authority}    # or, once: neo client-config trust",
        ),
    )
