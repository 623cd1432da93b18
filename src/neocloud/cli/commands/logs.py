"""`neo logs`: print the log of a workload, or the log of the cloud's server."""

import re
from collections.abc import Set
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from neocloud.cli.commands.server_log import (
    Filter,
    Level,
    LogFormat,
    any_of,
    lines,
    older_file,
    print_records,
    records,
    start_of,
)
from neocloud.cli.commands.workload_log import (
    LOGS,
    is_workload,
    kind_without_log,
    no_workload,
    print_workload_log,
    workload_log,
)
from neocloud.cli.lazy import Options, command_group
from neocloud.cli.machine.home import Home
from neocloud.cli.output import say
from neocloud.cli.resources.lookup import (
    CLUSTERS,
    PROJECTS,
    ProjectClient,
    ProjectOption,
    connect_to_project,
    id_of,
    is_id_of,
    names_of,
)
from neocloud.cli.resources.products import PRODUCTS
from neocloud.cli.resources.search import find
from neocloud.cli.target import current_is_remote, home_of, profile_of_home
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import exists_in_home

INTERRUPTED = 130
_REQUEST_ID = re.compile(r"[0-9a-f]{32}")
_NO_ANSWER = frozenset({"UNAVAILABLE", "UNAUTHENTICATED"})

app = command_group()


@dataclass(frozen=True)
class _ServerOptions:
    """The options that select lines of the server's log."""

    since: Annotated[
        str, typer.Option(help="Start in the server's log: 30s, 15m, 12h, 7d, or a time in UTC.")
    ] = ""
    level: Annotated[Level, typer.Option(help="Lowest level to print of the server's log.")] = Level.DEBUG
    output: Annotated[
        LogFormat,
        typer.Option("--output", "-o", help="Format of the server's log; json: an object per line."),
    ] = LogFormat.TEXT

    @property
    def first_given(self) -> str:
        """The first option that differs from its default; "" if there is none."""
        given = {
            "--since": bool(self.since),
            "--level": self.level is not Level.DEBUG,
            "--output": self.output is not LogFormat.TEXT,
        }
        return next((option for option, is_given in given.items() if is_given), "")


def is_request_id(text: str) -> bool:
    """Return whether it has the form of the `x-request-id` of an answer, which the server's log has."""
    return _REQUEST_ID.fullmatch(text) is not None


@app.command()
def logs(
    context: typer.Context,
    resource: Annotated[
        str,
        typer.Argument(
            help="Name or id of a workload, or of any resource with --control-plane.",
            autocompletion=names_of(*LOGS),
        ),
    ] = "",
    control_plane: Annotated[
        bool,
        typer.Option(
            "--control-plane", "-c", help="Print what the cloud's server logged about the resource instead."
        ),
    ] = False,
    workload: Annotated[
        bool, typer.Option("--workload", "-w", help="Print the log of the workload; the default with a name.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
    options: Annotated[_ServerOptions, Options(_ServerOptions)] = _ServerOptions(),
    home: Annotated[
        Path | None,
        typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud, which has the server's log."),
    ] = None,
    project: ProjectOption = "",
) -> None:
    """Print the log of a workload; without a name the log of the cloud's server.

    The log of a workload is a machine's serial console, the output of a Slurm cluster's newest job, of a
    deployment's model server, of a fine-tuning job's training, or of the program of an endpoint or a job.

    --control-plane prints the lines of the server's log that contain the id or name of a resource, without
    those of searches for the name. It needs the machine of the server. --since, --level, --output, --home and
    the id of a request in place of a name imply it.

    Examples:

      neo logs assistant
      neo logs nightly --follow
      neo logs web --control-plane
      neo logs --since 15m --level warning
    """
    if workload:
        _check_workload(resource, "--control-plane" if control_plane else options.first_given)
    source = context.get_parameter_source("home")  # the environment chooses a cloud for every command
    is_home_given = source is not None and source.name == "COMMANDLINE"
    is_of_server = control_plane or bool(options.first_given) or is_home_given or is_request_id(resource)
    kind = ""
    if resource and (workload or not is_of_server):
        kind = _print_workload(context, resource, project, follow=follow, is_strict=workload)
        if not kind:
            return
    cloud_home = _home_of_log(context, home, resource, kind)
    if kind:
        say(f"Nothing runs in the {kind} {resource!r}; this is what the server logged about it.")
    _print_server_log(cloud_home, resource, project, options, follow=follow)


def _check_workload(resource: str, option: str) -> None:
    if option or not resource:
        why = f"{option} is for the server's log" if option else "it needs the name of a resource"
        raise typer.BadParameter(why, param_hint="--workload")


def _print_workload(context: typer.Context, name: str, project: str, *, follow: bool, is_strict: bool) -> str:
    """Print the log of the workload of this name and return "", or the kind of a resource that is none.

    Raises ClientError if there is no such resource; if `is_strict`, also for one that is no workload.
    """
    try:
        cloud = connect_to_project(context, project)
        log, refusals = workload_log(cloud, name)
    except ClientError as error:
        if error.code == "UNAVAILABLE":
            step = f"`neo logs {quote(name)} --control-plane` reads the server's log on its machine"
            error.next_step = f"{error.next_step}. {step}" if error.next_step else step
        raise
    if log is not None:
        print_workload_log(cloud, log, name, follow=follow)
        return ""
    kind = "" if is_strict else kind_without_log(cloud, name)
    if not kind:
        raise no_workload(cloud, name, refusals)
    return kind


def _print_server_log(
    home: Home, resource: str, project: str, options: _ServerOptions, *, follow: bool
) -> None:
    """Print the lines of the server's log, or those about a resource."""
    started_at = start_of(options.since, datetime.now(UTC)) if options.since else None
    words, is_unknown = _words_of(home, resource, project) if resource else (frozenset[str](), False)
    chosen = Filter(any_of(words) if words else None, started_at, options.level)
    try:
        read = records(lines(home.log_file, follow=follow and not is_unknown))
        printed = print_records(read, chosen, options.output)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if is_unknown and not printed:
        step = "`neo ls` lists what is in the project, and --project names another"
        raise ClientError("NOT_FOUND", f"There is no resource {resource!r}, and no log line about one", step)
    if is_unknown:
        say(f"There is no resource {resource!r} any more.")
    elif not printed:
        say("The log has no such lines.")
    elif any(map(is_workload, words)):
        say(f"This is the server's log. What runs in it prints: neo logs {quote(resource)}")


def _home_of_log(context: typer.Context, given: Path | None, resource: str, kind: str) -> Home:
    """Return the state folder. `kind`: that of a resource without a log of its own. Raises ClientError."""
    try:
        return _home_with_log(context, given, is_of_profile=bool(resource))
    except ClientError as error:
        if not kind:
            raise
        why = f"Nothing runs in the {kind} {resource!r}, so it has no log of its own"
        step = f"On the server's machine, `neo logs {quote(resource)}` prints what the cloud did with it"
        raise ClientError("NOT_FOUND", why, step) from error


def _home_with_log(context: typer.Context, given: Path | None, *, is_of_profile: bool) -> Home:
    """Return the state folder. Raises ClientError if there is no log in it.

    `is_of_profile`: unless it is given, it must be that of the profile's cloud.
    """
    home = Home(home_of(context, given))
    if not exists_in_home(home.log_file) and not exists_in_home(older_file(home.log_file)):
        raise ClientError(
            "NOT_FOUND",
            f"There is no log in {home.path}",
            f"Start a cloud there with `neo up --home {quote(str(home.path))}`, or name another with --home",
        )
    if is_of_profile and given is None and current_is_remote(context):
        raise ClientError(
            "FAILED_PRECONDITION",
            "The cloud of the profile runs on another machine, which has the log of its server",
            f"Run this command there; to print the server's log in {home.path}"
            f" add --home {quote(str(home.path))}",
        )
    return home


def _words_of(home: Home, resource: str, project: str) -> tuple[Set[str], bool]:
    """Return the resource's id and name, and whether the cloud runs and has no such name.

    Ids of a name are known only while the cloud runs.
    """
    words = {resource}
    kinds = (CLUSTERS, *(noun.service for product in PRODUCTS.values() for noun in product.nouns))
    if any(is_id_of(kind, resource) for kind in kinds) or home.server() is None:
        return words, False
    profile = profile_of_home(home.path, "home")
    with connect(profile, version="") as client:
        cloud = ProjectClient(client, profile, profile.project_id)
        project_id = id_of(cloud, PROJECTS, project) or profile.project_id
        try:
            page = find(
                client, parent_ids=[each for each in (project_id, profile.tenant_id) if each], name=resource
            )
        except ClientError as error:
            if error.code not in _NO_ANSWER:
                raise
            return words, False
    if page is None:  # a server of the release before: the lines with the name are found
        return words, False
    return words | {item.id for item in page.items}, not page.items
