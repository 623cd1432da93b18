"""`neo login`: make a profile from a credentials file, after trying it."""

from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.lazy import command_group
from neocloud.cli.output import fields_table, print_view
from neocloud.client.connection import connect_as
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.client.profiles import Profile, config_file, read_profiles, write_profiles

app = command_group()


@app.command()
def login(
    credentials: Annotated[Path, typer.Option(help="Credentials file of a service account (JSON).")],
    endpoint: Annotated[str, typer.Option(help="host:port of the gRPC API. Default: as the file says.")] = "",
    name: Annotated[str, typer.Option(help="Name of the new profile.")] = "default",
    tenant: Annotated[str, typer.Option(help="Tenant id. Default: as the file says.")] = "",
    project: Annotated[str, typer.Option(help="Project to work in. Default: as the file says.")] = "",
) -> None:
    """Use a cloud with a credentials file.

    The credentials are tried before the profile is written. `neo up` does this by itself for a cloud on this
    machine.

    Examples:

      neo login --credentials /var/lib/neocloud/credentials.json
      neo login --credentials team.json --endpoint cloud.example:7370 --name team
    """
    found = read_credentials(credentials)
    endpoint = endpoint or found.endpoint
    if not endpoint:
        raise ClientError(
            "INVALID_ARGUMENT", f"{credentials} does not say where the cloud is", "Add --endpoint host:port"
        )
    with connect_as(found, endpoint) as client:
        answer = client.call("nebius.iam.v1.ProfileService/Get")
    account = answer.service_account_profile.info
    profile = Profile(
        name=name,
        endpoint=endpoint,
        credentials_file=str(credentials.absolute()),
        tenant_id=tenant or found.tenant_id,
        project_id=project or found.project_id or account.metadata.parent_id,
    )
    write_profiles(read_profiles(config_file()).with_profile(profile), config_file())
    typer.echo(f"Signed in. {name} is the current profile now.")
    print_view(
        fields_table(
            [
                (
                    "  Account",
                    f"{account.metadata.name or found.service_account_id} ({found.service_account_id})",
                ),
                ("  API", endpoint),
                ("  Project", profile.project_id),
            ]
        )
    )
