"""`neo quota`: limits and usage of a tenant and its projects."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, fields_table, say, show, table
from neocloud.cli.resources.lookup import Connected, CurrentProfile, project_id_of, tenant_id_of
from neocloud.client.connection import Client
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.nebius.quotas.v1 import QuotaAllowance

SERVICE = "nebius.quotas.v1.QuotaAllowanceService"
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")

NameArgument = Annotated[str, typer.Argument(help="Name of the quota, e.g. compute.disk.count.")]
TenantOption = Annotated[
    str, typer.Option("--tenant", help="Id or name of the tenant. Default: the profile's.")
]
ProjectOption = Annotated[
    str, typer.Option("--project", help="Id or name of a project, instead of the whole tenant.")
]

app = command_group(
    """Limits and usage of a tenant and its projects.

A project shares the limits of its tenant unless it has a limit of its own.

Examples:

  neo quota list
  neo quota set compute.instance.gpu.h100 16
  neo quota set compute.instance.count 20 --project project-e00abc
"""
)


@app.command("list")
def list_quotas(
    client: Connected,
    profile: CurrentProfile,
    tenant: TenantOption = "",
    project: ProjectOption = "",
    used: Annotated[bool, typer.Option("--used", help="Show only quotas in use.")] = False,
    output: OutputOption = Format.TABLE,
) -> None:
    """List all quotas with their limits and usage.

    Examples:

      neo quota list --used
      neo quota list --project project-e00abc --output json
    """
    found = _all(client, _parent(client, profile, tenant, project))
    items = [item for item in found if item.status.usage or not used]
    rows = (
        (
            item.metadata.name,
            _amount(item.status.usage, item),
            _amount(item.spec.limit, item),
            _percent(item),
            item.status.description,
        )
        for item in items
    )
    view = table(["NAME", "USED", "LIMIT", "%", "WHAT"], rows, right=["USED", "LIMIT", "%"])
    show(output, [contract.to_document(item) for item in items], view, empty="No quota is in use.")


@app.command()
def get(
    client: Connected,
    profile: CurrentProfile,
    name: NameArgument,
    tenant: TenantOption = "",
    project: ProjectOption = "",
    output: OutputOption = Format.TABLE,
) -> None:
    """Show one quota.

    Examples:

      neo quota get compute.disk.count
    """
    item = _one(client, _parent(client, profile, tenant, project), name)
    pairs = (
        ("Name", item.metadata.name),
        ("What", item.status.description),
        ("In", item.metadata.parent_id),
        ("Used", _amount(item.status.usage, item)),
        ("Limit", _amount(item.spec.limit, item)),
        ("Share", f"{_percent(item)} %"),
        ("Id", item.metadata.id),
    )
    show(output, contract.to_document(item), fields_table(pairs))


@app.command("set", context_settings={"ignore_unknown_options": True})  # a limit of -1 is not an option
def set_limit(
    client: Connected,
    profile: CurrentProfile,
    name: NameArgument,
    limit: Annotated[str, typer.Argument(help="New limit: 20, 5TiB, or `default` to restore the default.")],
    tenant: TenantOption = "",
    project: ProjectOption = "",
) -> None:
    """Set a limit. Resources above a lower limit are kept.

    Examples:

      neo quota set compute.disk.size.network-ssd 20TiB
      neo quota set compute.instance.gpu.h100 4 --project project-e00abc
      neo quota set compute.instance.gpu.h100 default --project project-e00abc
    """
    parent_id = _parent(client, profile, tenant, project)
    item = _one(client, parent_id, name)
    if limit == "default":
        client.wait(client.call(f"{SERVICE}/Delete", {"id": item.metadata.id}))
    else:
        metadata = {"parent_id": parent_id, "name": name}
        spec = {"limit": str(_number(limit)), "region": item.spec.region}
        client.wait(client.call(f"{SERVICE}/Create", {"metadata": metadata, "spec": spec}))
    item = _one(client, parent_id, name)
    used, highest = _amount(item.status.usage, item), _amount(item.spec.limit, item)
    say(f"{name}: {used} of {highest} are used in {parent_id}.")


def _all(client: Client, parent_id: str) -> Iterator["QuotaAllowance"]:
    return client.list_all(f"{SERVICE}/List", {"parent_id": parent_id})


def _one(client: Client, parent_id: str, name: str) -> "QuotaAllowance":
    for item in _all(client, parent_id):
        if item.metadata.name == name:
            return item
    raise ClientError("NOT_FOUND", f"There is no quota {name!r}", "`neo quota list` lists them")


def _parent(client: Client, profile: Profile, tenant: str, project: str) -> str:
    found = project_id_of(client, profile, project) if project else tenant_id_of(client, profile, tenant)
    if not found:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"Profile {profile.name!r} has no tenant",
            "Give --tenant or --project; `neo iam tenant list` lists the tenants",
        )
    return found


def _number(text: str) -> int:
    """ "20", or "5TiB" of bytes."""
    for power, unit in enumerate(_UNITS):
        number = text.strip().removesuffix(unit)
        if power and number != text.strip() and number.strip().isdecimal():
            return int(number) << 10 * power
    if text.strip().isdecimal():
        return int(text)
    raise ClientError("INVALID_ARGUMENT", f"{text!r} is not a limit", "Write 20, 5TiB or default")


def _amount(value: int, item: "QuotaAllowance") -> str:
    if item.status.unit != "byte":
        return str(value)
    power = min((max(value, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    shown = f"{value / (1 << 10 * power):.1f}".removesuffix(".0")
    return f"{shown} {_UNITS[power]}"


def _percent(item: "QuotaAllowance") -> str:
    return f"{float(item.status.usage_percentage or 0) * 100:.0f}"
