"""`neo client-config`: configure the official SDK, SkyPilot, dstack, Terraform and S3 clients."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from neocloud.cli.clients import (
    Plan,
    PlannedFile,
    Target,
    dstack_plan,
    sdk_plan,
    sky_plan,
    sky_plan_for_this_cloud_only,
    terraform_plan,
)
from neocloud.cli.lazy import command_group
from neocloud.cli.machine import trust_store
from neocloud.cli.machine.home import Home, RunningServer
from neocloud.cli.target import home_of, profile_of
from neocloud.cli.terminal import echo
from neocloud.client.credentials import read_credentials
from neocloud.client.errors import ClientError
from neocloud.core.osfiles import make_private_parents, write_file
from neocloud.settings.object_settings import storage_host_name

app = command_group(
    "Configure other clients for this cloud.\n\nThey require TLS: start the cloud with `neo up --tls`,"
    " and make this machine trust its authority once.\n\nExample:\n\n  neo client-config sky"
)

DirectoryOption = Annotated[
    Path | None,
    typer.Option("--directory", help="Write below this directory instead of your home directory."),
]
ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite files with other content.")]


@app.command()
def sdk(context: typer.Context, directory: DirectoryOption = None, force: ForceOption = False) -> None:
    """Write a profile for the official `nebius` SDK.

    Example:

      neo client-config sdk
    """
    _write_plan(context, sdk_plan, directory, force)


@app.command()
def sky(
    context: typer.Context,
    directory: DirectoryOption = None,
    force: ForceOption = False,
    only_this_cloud: Annotated[
        bool,
        typer.Option(
            "--only-this-cloud",
            help="Show only this cloud's machines, without the published Nebius list; needs no internet.",
        ),
    ] = False,
) -> None:
    """Write the credentials and the address that SkyPilot's Nebius cloud reads.

    Examples:

      neo client-config sky && sky check nebius
      neo client-config sky --only-this-cloud
    """
    plan = sky_plan_for_this_cloud_only if only_this_cloud else sky_plan
    _write_plan(context, plan, directory, force)


@app.command()
def dstack(context: typer.Context, directory: DirectoryOption = None, force: ForceOption = False) -> None:
    """Write a server configuration for dstack with this cloud as its backend.

    Example:

      neo client-config dstack
    """
    _write_plan(context, dstack_plan, directory, force)


@app.command()
def terraform(
    context: typer.Context,
    directory: Annotated[
        Path, typer.Option("--directory", help="Folder of your *.tf files; the key is written to ~/.nebius.")
    ] = Path(),
    force: ForceOption = False,
) -> None:
    """Write an override file that points the Terraform provider at this cloud.

    Example:

      neo client-config terraform --directory ./infrastructure
    """
    _write_plan(context, terraform_plan, None, force, work=directory)


@app.command()
def s3(context: typer.Context) -> None:
    """Show where S3 clients find the buckets of this cloud, and how to make a key for them.

    Example:

      neo client-config s3
    """
    home = Home(home_of(context))
    server = _running_server(home)
    if not server.s3:
        raise ClientError("UNAVAILABLE", "The cloud serves no object storage", "See neo status")
    region = home.settings().region
    echo(f"Endpoint  http://{server.s3}")
    for address in server.listen if server.s3_tls_port else ():
        echo(f"          port {server.s3_tls_port} over TLS on {address}, for other machines")
    _say_where_inside(home, "          https://")
    echo(f"Region    {region}")
    echo("neo storage needs no key: it signs as your own account.")
    echo("For other clients, make a key of a service account that may use buckets, and read its secret:")
    echo("  neo iam access-key create --account-service-account-id ID --secret-delivery-mode EXPLICIT")
    echo("  neo iam access-key get-secret KEY")
    echo("Then, for boto3 and the AWS CLI:")
    echo(f"  export AWS_ENDPOINT_URL=http://{server.s3} AWS_REGION={region}")
    echo("  export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...")
    echo("For rclone:")
    echo(f"  export RCLONE_S3_PROVIDER=Other RCLONE_S3_ENDPOINT=http://{server.s3} RCLONE_S3_ENV_AUTH=true")


@app.command()
def registry(context: typer.Context) -> None:
    """Show where docker, podman and skopeo find the registries of this cloud, and how to sign in.

    Example:

      neo client-config registry
    """
    home = Home(home_of(context))
    server = _running_server(home)
    if not server.s3:
        raise ClientError("UNAVAILABLE", "The cloud serves no container registry", "See neo status")
    echo(f"Address   {server.s3}, plain HTTP, for this machine")
    for address in server.listen if server.s3_tls_port else ():
        echo(f"          port {server.s3_tls_port} over TLS on {address}, for other machines")
    _say_where_inside(home, "          ")
    echo("Make a registry; status.registry_fqdn is how the names of its images begin:")
    echo("  neo registry registry create NAME")
    echo("Sign podman, docker or skopeo in as yourself, for an hour:")
    echo("  neo registry login")
    echo("or any client as the user iam with the access token of `neo session token` as the password,")
    echo("or for longer with an access key of a service account, and its secret:")
    echo(f"  docker login --username ACCESS_KEY_ID {server.s3}")
    echo(f"  podman login --tls-verify=false --username ACCESS_KEY_ID {server.s3}")


@app.command()
def trust(
    context: typer.Context,
    remove: Annotated[bool, typer.Option("--remove", help="Remove it from the trust store.")] = False,
) -> None:
    """Add the cloud's certificate authority to this machine's trust store, as root.

    Examples:

      neo client-config trust
      neo client-config trust --remove
    """
    if remove:
        removed = trust_store.remove()
        echo("This machine no longer trusts the cloud's authority." if removed else "It was not trusted.")
        return
    home = Home(home_of(context))
    _server_with_tls(home)
    path = trust_store.add(home.authority_file)
    echo(f"This machine now trusts the cloud's authority: {path}.")
    echo("Undo with: neo client-config trust --remove")


def _write_plan(
    context: typer.Context,
    make: Callable[[Target], Plan],
    home: Path | None,
    force: bool,
    *,
    work: Path = Path(),
) -> None:
    """Write the plan's files, or none if one has other content, and print the next steps."""
    target = _target(context)
    plan = make(target)
    roots = {True: work.absolute(), False: (home or Path.home()).absolute()}
    places = {roots[file.path.startswith("./")] / file.path: file for file in plan.files}
    if not force:
        _refuse_overwriting(places)
    for path, file in places.items():
        _write(path, file)
        echo(f"Wrote {path}")
    if not trust_store.trusts(target.authority):
        echo("This machine does not trust the cloud's authority yet. Run once, as root:")
        echo("  neo client-config trust")
    echo("Next:")
    for step in plan.next_steps:
        echo(f"  {step}")


def _target(context: typer.Context) -> Target:
    home = Home(home_of(context))
    server = _server_with_tls(home)
    profile = profile_of(context)
    credentials = Path(profile.credentials_file)
    account = read_credentials(credentials)
    port = server.tls.rpartition(":")[2]
    return Target(
        address=f"{home.settings().domain}:{port}",
        redirector=server.redirector,
        credentials=credentials.read_text(),
        service_account_id=account.service_account_id,
        tenant_id=profile.tenant_id,
        project_id=profile.project_id,
        authority=home.authority_file,
    )


def _running_server(home: Home) -> RunningServer:
    server = home.server() if home.was_started() else None
    if server is None:
        raise ClientError("UNAVAILABLE", f"The cloud in {home.path} is not running", "Start it: neo up --tls")
    return server


def _server_with_tls(home: Home) -> RunningServer:
    server = _running_server(home)
    if not server.tls:
        raise ClientError(
            "FAILED_PRECONDITION",
            "The cloud does not serve TLS, which these clients require",
            "Restart it with: neo down && neo up --tls",
        )
    return server


def _refuse_overwriting(places: Mapping[Path, PlannedFile]) -> None:
    others = [path for path, file in places.items() if path.exists() and path.read_text() != file.content]
    if others:
        raise ClientError(
            "ALREADY_EXISTS",
            f"{', '.join(map(str, others))} already exists with other content",
            "Move it away, write elsewhere with --directory, or replace it with --force",
        )


def _write(path: Path, file: PlannedFile) -> None:
    make_private_parents(path)
    write_file(path, file.content, 0o600 if file.is_secret else 0o644)


def _say_where_inside(home: Home, start: str) -> None:
    settings = home.settings()
    if not settings.emulator:
        echo(f"{start}{storage_host_name(settings.region)}, on nodes of Slurm clusters")
