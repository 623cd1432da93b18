"""`neo ai endpoint` and `neo ai job`: what create fills in where nothing is named, and logs."""

from typing import Annotated

import typer

from neocloud.cli.output import JsonObject, say
from neocloud.cli.resources.lookup import AI_JOBS, ENDPOINTS, Cloud, ProjectClient, names_of
from neocloud.cli.resources.noun import Overrides
from neocloud.cli.resources.shapes import smallest_shape
from neocloud.cli.terminal import echo
from neocloud.core.json_values import is_object

PROTOCOL = "HTTP"
DISK_TYPE = "NETWORK_SSD"
LOGS = "neocloud.ai.v1.LogService"
FOLLOW_SECONDS = 1.0
MOST_LINES = 10_000

TailOption = Annotated[
    int, typer.Option(min=0, max=MOST_LINES, help="Number of last lines to print; 0: all.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines until it ends.")]
PreviousOption = Annotated[
    bool, typer.Option("--previous", help="Print the end of the log of the run before the one that runs now.")
]


def fill_defaults(cloud: ProjectClient, request: JsonObject) -> None:
    """Fill in the smallest shape, a disk and the protocol of ports, and say which shape it is."""
    spec: JsonObject = request["spec"]
    objects = [(port, "protocol", PROTOCOL) for port in spec.get("ports", ())]
    for each, name, value in (*objects, (spec.setdefault("disk", {}), "type", DISK_TYPE)):
        if is_object(each):  # anything else is refused with the reason
            each.setdefault(name, value)
    platform, preset = str(spec.get("platform") or ""), str(spec.get("preset") or "")
    if not platform or not preset:
        spec["platform"], spec["preset"] = smallest_shape(cloud, platform, preset)
        say(f"It gets {spec['preset']} on {spec['platform']}; --platform and --preset name others.")


def endpoint_logs(
    cloud: Cloud,
    name: Annotated[
        str, typer.Argument(help="Name or id of the endpoint.", autocompletion=names_of(ENDPOINTS))
    ],
    tail: TailOption = 0,
    follow: FollowOption = False,
    previous: PreviousOption = False,
) -> None:
    """Print what an endpoint's program has written to stdout and stderr.

    For a stopped endpoint, the last lines that it printed.

    Examples:

      neo ai endpoint logs web --tail 50
      neo ai endpoint logs web --follow
    """
    endpoint_id = cloud.find(ENDPOINTS, name).metadata.id
    _print_log(cloud, f"{LOGS}/ReadEndpointLog", endpoint_id, tail, follow=follow, previous=previous)


def job_logs(
    cloud: Cloud,
    name: Annotated[str, typer.Argument(help="Name or id of the job.", autocompletion=names_of(AI_JOBS))],
    tail: TailOption = 0,
    follow: FollowOption = False,
    previous: PreviousOption = False,
) -> None:
    """Print what a job's program has written to stdout and stderr.

    For an ended job, the last lines that it printed. With --follow they are printed until it ends.

    Examples:

      neo ai job logs nightly --follow
      neo ai job logs nightly --previous
    """
    job_id = cloud.find(AI_JOBS, name).metadata.id
    _print_log(cloud, f"{LOGS}/ReadJobLog", job_id, tail, follow=follow, previous=previous)


def _print_log(
    cloud: ProjectClient, method: str, workload_id: str, tail: int, *, follow: bool, previous: bool
) -> None:
    request: JsonObject = {"id": workload_id, "tail": tail, "previous": previous}
    said, has_printed = "", False
    while True:
        page = cloud.client.call(method, request)
        if request.get("run") and request["run"] != page.run:
            say("It was started again; this is the log of the new run.")
        for line in page.lines:
            echo(line)
        has_printed |= bool(page.lines)
        if page.reason != said and page.reason:
            say(page.reason)
        said = page.reason
        is_end = not page.lines and (page.is_complete or not follow)
        if is_end or (tail and not follow):
            break
        request |= {"tail": 0, "first_line": page.next_line, "run": page.run}
        if not page.lines:
            cloud.client.sleep(FOLLOW_SECONDS)
    if not has_printed:
        nothing = "No log of an earlier run is kept." if previous else "It has printed nothing."
        say(nothing)


OVERRIDES: Overrides = {"endpoint": {"logs": endpoint_logs}, "job": {"logs": job_logs}}
