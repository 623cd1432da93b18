"""`neo config`: the user's profiles, and the settings of the cloud on this machine."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from neocloud.cli.commands import cloud_settings
from neocloud.cli.lazy import command_group
from neocloud.cli.output import Format, OutputOption, say, show, table
from neocloud.cli.target import profile_of
from neocloud.cli.terminal import echo
from neocloud.client.profiles import config_file, read_profiles, write_profiles

app = command_group(
    "Settings of the cloud on this machine, and profiles: the cloud, account and project that commands use."
    "\n\nExamples:\n\n  neo config list                 # the settings of this cloud"
    "\n  neo config set audit-days 90    # change one\n  neo config profiles             # the profiles"
)
app.command("list")(cloud_settings.list_settings)
app.command("get")(cloud_settings.get)
app.command("set")(cloud_settings.set_setting)
app.command("unset")(cloud_settings.unset)


@app.command("profiles")
def list_profiles(output: OutputOption = Format.TABLE) -> None:
    """List the profiles; a star marks the current one.

    Examples:

      neo config profiles
      neo --profile other slurm cluster list      # use another one for one command
    """
    found = read_profiles(config_file())
    rows = [{**asdict(profile), "is_current": name == found.current} for name, profile in found.items.items()]
    view = table(
        ["", "NAME", "ENDPOINT", "PROJECT", "STATE FOLDER"],
        (
            ("*" if row["is_current"] else " ", row["name"], row["endpoint"], row["project_id"], row["home"])
            for row in rows
        ),
    )
    show(output, rows, view, empty="There is no profile yet. `neo up` or `neo login` creates one.")


@app.command()
def use(name: Annotated[str, typer.Argument(help="Name of the profile.")]) -> None:
    """Select the current profile.

    Example:

      neo config use default
    """
    write_profiles(read_profiles(config_file()).using(name), config_file())
    echo(f"{name} is now the current profile.")


@app.command()
def set_project(
    context: typer.Context, project: Annotated[str, typer.Argument(help="Id or name of the project.")]
) -> None:
    """Set the project that commands work in.

    Examples:

      neo config set-project risk
      neo config set-project project-e00risk
    """
    from neocloud.cli.resources.lookup import PROJECTS, connect_to_project, is_id_of  # noqa: PLC0415  gRPC

    project_id = project if is_id_of(PROJECTS, project) else connect_to_project(context, project).project
    profile = replace(profile_of(context), project_id=project_id)
    write_profiles(read_profiles(config_file()).with_profile(profile), config_file())
    echo(f"Profile {profile.name} now works in {project_id}.")


@app.command()
def remove(name: Annotated[str, typer.Argument(help="Name of the profile.")]) -> None:
    """Remove a profile. The cloud and its credentials file are kept.

    Example:

      neo config remove old
    """
    known = read_profiles(config_file())
    rest = known.signed_out(known.get(name).name)
    write_profiles(rest, config_file())
    echo(f"Profile {name} is removed.")
    if rest.items and not rest.current:
        others = ", ".join(sorted(rest.items))
        say(f"No profile is selected now. `neo config use NAME` selects one of: {others}.")
