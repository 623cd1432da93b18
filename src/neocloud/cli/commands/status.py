"""`neo status`: state of the cloud, its machine and its clusters."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from neocloud import __version__
from neocloud.cli.lazy import command_group
from neocloud.cli.machine.entrance import authority_fingerprint, entrance_rows, open_ports
from neocloud.cli.machine.home import NOTHING_REAL, Home, RunningServer
from neocloud.cli.machine.server_process import deaths_of_server, get_json, is_supervised
from neocloud.cli.machine.stops import Stop, last_stop
from neocloud.cli.machine.systemd_unit import has_unit, unit_file
from neocloud.cli.output import (
    Format,
    JsonObject,
    OutputOption,
    counted,
    fields_table,
    print_view,
    show,
    size_text,
    table,
    warn,
    warn_of_error,
)
from neocloud.cli.progress import duration
from neocloud.cli.resources.lookup import state_of
from neocloud.cli.target import HomeOption, home_of, profile_of_home
from neocloud.cli.terminal import echo
from neocloud.client.connection import connect
from neocloud.client.errors import ClientError
from neocloud.control_plane.server_supervisor import server_child
from neocloud.control_plane.settings_file import settings_or_defaults
from neocloud.core import releases
from neocloud.core.json_values import as_list, as_object, is_object

if TYPE_CHECKING:
    from neocloud.messages.neocloud.slurm.v1 import Cluster

app = command_group()

SHORT_LIVES_TO_WARN = 2
LIST_CLUSTERS = "neocloud.slurm.v1.ClusterService/List"
ENFORCEABLE = {
    "enforces_cpu": "CPU",
    "enforces_memory": "memory",
    "enforces_volume_size": "filesystem size",
    "enforces_container_disk": "container disk",
    "isolates_namespaces": "network between clusters",
}


@app.command()
def status(
    context: typer.Context,
    output: OutputOption = Format.TABLE,
    home: HomeOption = None,
) -> None:
    """Show the state of the cloud: its server, engine, accelerators and clusters.

    The exit code is 0 if the cloud is running and 5 if it is not.

    Examples:

      neo status
      neo status --output json
    """
    place = Home(home_of(context, home))
    is_ours = place.is_ours()  # first, as a user to whom the folder is closed would read "stopped"
    server = place.server()
    settings, problem = settings_or_defaults(place.path)
    stopped = "restarting" if is_supervised(place) else "stopped"
    stop = last_stop(place) if server is None and stopped == "stopped" else None
    report: JsonObject = {
        "state": "running" if server else stopped,
        "home": str(place.path),
        "is_emulator": settings.emulator,
        "is_supervised": is_supervised(place),
        "restarts": _restarts(place),
        "service": unit_file(place).name if has_unit(place) else "",
        "stopped": stop.document() if stop else {},
    }
    if server is not None:
        report |= _running_report(place, server)
    if output is not Format.TABLE:
        show(output, report, fields_table(()))
    elif server is None:
        _print_stopped(place, stop, is_ours=is_ours)
    else:
        _print_running(report, place, server)
    if problem:
        warn(problem)
    if server is None:
        raise typer.Exit(5)


def _running_report(place: Home, server: RunningServer) -> JsonObject:
    profile = profile_of_home(place.path, "home")
    with connect(profile, version="") as client:
        details = get_json(server.http, "/status", client.tokens.token())
        clusters = list(client.list_all(LIST_CLUSTERS, {"parent_id": profile.project_id}))
    if not is_object(details):
        raise ClientError(
            "UNAVAILABLE", f"The server at {server.http} does not answer", f"See {place.log_file}"
        )
    engine = details.get("engine")
    if is_object(engine):
        engine["accelerators"] = _counted(
            [each for each in as_list(engine.get("accelerators")) if is_object(each)]
        )
    return {
        "pid": server.pid,
        "grpc": server.grpc,
        "http": server.http,
        "gateway": server.gateway,
        "s3": server.s3,
        "open_ports": open_ports(server),
        "fingerprint": authority_fingerprint(place) if server.listen else "",
        "ready_since": server.ready_since.isoformat(),
        "tenant_id": profile.tenant_id,
        "project_id": profile.project_id,
        **details,
        "clusters": [_cluster_summary(cluster) for cluster in clusters],
    }


def _cluster_summary(cluster: "Cluster") -> JsonObject:
    return {
        "name": cluster.metadata.name,
        "id": cluster.metadata.id,
        "state": state_of(cluster),
        "workers": sum(node_set.count for node_set in cluster.spec.node_sets),
    }


def _restarts(place: Home) -> JsonObject:
    """Return how often the server was started again since `neo up`, and why the last time."""
    deaths = deaths_of_server(place)
    if not deaths.restarts:
        return {"count": 0}
    last = {"at": datetime.fromtimestamp(deaths.at, UTC).isoformat(), "why": deaths.why, "said": deaths.said}
    return {"count": deaths.restarts, "in_a_row": deaths.short_lives, "last": last}


def _restart_rows(place: Home) -> list[tuple[str, object]]:
    deaths = deaths_of_server(place)
    if server_child(place.path).find() is not None and not is_supervised(place):
        return [("Restarts", "not watched: its supervisor has died; `neo up` starts another one")]
    if not deaths.restarts:
        return []
    at = datetime.fromtimestamp(deaths.at, UTC)
    said = f": {deaths.said}" if deaths.said else ""
    return [("Restarts", f"{deaths.restarts}; at {at:%Y-%m-%d %H:%M:%S} UTC the server {deaths.why}{said}")]


def _print_stopped(place: Home, stop: Stop | None, *, is_ours: bool) -> None:
    if is_supervised(place):
        rows = [("State", "restarting"), ("State folder", place.path), *_restart_rows(place)]
        print_view(fields_table([*rows, ("Log", place.log_file)]))
        if (deaths := deaths_of_server(place)).short_lives > SHORT_LIVES_TO_WARN:
            warn(
                f"The server died {deaths.short_lives} times in a row. Its log says why; after a change,"
                " `neo up` starts it without a pause, and `neo down` gives up."
            )
        return
    print_view(fields_table([("State", "stopped"), *_stop_rows(stop), ("State folder", place.path)]))
    echo("Start it with `neo up`." if is_ours else "There is no cloud there. `neo up` starts one.")


def _stop_rows(stop: Stop | None) -> list[tuple[str, object]]:
    if stop is None:
        return []
    if stop.why:
        return [("Since" if stop.is_known else "Last sign of life", stop.time), ("Because", stop.why)]
    return [
        ("Since", stop.time),
        ("Stopped by", f"{stop.by}, with `{stop.command}`" if stop.command else stop.by),
    ]


def _print_running(report: JsonObject, place: Home, server: RunningServer) -> None:
    engine, storage = (
        as_object(report.get("engine")),
        as_object(as_object(report.get("reports")).get("storage")),
    )
    elapsed = duration((datetime.now(UTC) - server.ready_since).total_seconds())
    rows = [
        ("State", "running, as an emulator" if report["is_emulator"] else "running"),
        ("Since", f"{server.ready_since:%Y-%m-%d %H:%M:%S} UTC ({elapsed})"),
        ("Version", server.version),
        ("Process", server.pid),
        *_restart_rows(place),
        *([("At boot", f"started by systemd ({unit_file(place).name})")] if has_unit(place) else []),
        ("State folder", place.path),
        ("Database", report.get("database", "")),
        ("Log", place.log_file),
        ("API", f"{server.grpc} (gRPC), {server.http} (JSON)"),
        *([("OpenAI API", f"http://{server.gateway}/v1")] if server.gateway else []),
        *([("Object storage", f"http://{server.s3} (S3)")] if server.s3 else []),
        *object_rows(storage),
        *entrance_rows(place, server),
        *_certificate_rows(report.get("certificate") or {}),
        ("Project", report["project_id"]),
        ("Services", ", ".join(report.get("services") or ())),
    ]
    machine = (
        _engine_rows(engine)
        if engine
        else [("Machine", "visible only to admins and editors of the operator")]
    )
    print_view(fields_table([*rows, *machine]))
    if certificate := report.get("certificate"):
        _print_problem(certificate)
    if refusal := releases.refusal(__version__, server.version):
        warn(f"{refusal.message}. {refusal.next_step}.")
    for warning in object_warnings(storage):
        warn(warning)
    for warning in (NOTHING_REAL,) if report["is_emulator"] else as_list(engine.get("warnings")):
        warn(str(warning))
    echo()
    clusters = [(item["name"], item["state"], item["workers"], item["id"]) for item in report["clusters"]]
    if clusters:
        show(
            Format.TABLE,
            None,
            table(["SLURM CLUSTER", "STATE", "WORKERS", "ID"], clusters, right=["WORKERS"]),
        )
    else:
        echo("No Slurm cluster yet. Create one: neo slurm cluster create NAME --workers 2")


def _certificate_rows(certificate: JsonObject) -> list[tuple[str, object]]:
    if not certificate:
        return []
    ends_at = datetime.fromisoformat(str(certificate["ends_at"]))
    ending = "expired" if certificate["is_expired"] else "expires"
    renewal = ""
    is_renewed = certificate.get("is_renewed", certificate["is_own"])  # servers of earlier releases say less
    if is_renewed and not certificate["problem"]:
        renewal = "; the server renews it before"
        if certificate.get("ends_with_authority"):
            renewal = "; the cloud's certificate authority ends then too"
    rows: list[tuple[str, object]] = [(f"TLS {ending}", f"{ends_at:%Y-%m-%d %H:%M} UTC{renewal}")]
    if step := as_object(certificate.get("acme")).get("step"):
        rows.append(("Certificate order", step))
    return rows


def _print_problem(certificate: JsonObject) -> None:
    if problem := certificate["problem"]:
        (warn_of_error if certificate["is_expired"] else warn)(str(problem))


def _engine_rows(engine: JsonObject) -> list[tuple[str, object]]:
    enforced = [word for key, word in ENFORCEABLE.items() if engine.get(key)]
    missing = [word for key, word in ENFORCEABLE.items() if not engine.get(key)]
    accelerators = [
        f"{gpu['count']} x {gpu['vendor']} {gpu['model']} ({_gib(gpu['memory_mib'])})"
        for gpu in engine.get("accelerators") or ()
    ]
    return [
        ("Machine", f"{engine.get('cpus', 0)} CPUs, {_gib(engine.get('memory_mib', 0))} memory"),
        ("Accelerators", ", ".join(accelerators) or "none found"),
        ("Enforced", ", ".join(enforced) or "nothing"),
        ("Not enforced", ", ".join(missing) or "nothing"),
        ("Engine", f"{engine.get('engine', 'unknown')} {engine.get('version', '')}".strip()),
        *((f"  {key.replace('_', ' ')}", value) for key, value in as_object(engine.get("details")).items()),
    ]


def _counted(accelerators: Sequence[JsonObject]) -> list[JsonObject]:
    """Return one entry for each type of accelerator, with its count."""
    counts = Counter((gpu["vendor"], gpu["model"], gpu["memory_mib"]) for gpu in accelerators)
    return [
        {"vendor": vendor, "model": model, "memory_mib": memory, "count": count}
        for (vendor, model, memory), count in counts.items()
    ]


def _gib(mebibytes: int) -> str:
    return f"{mebibytes / 1024:.1f} GiB"


FEW = 5


def object_rows(storage: JsonObject) -> Iterator[tuple[str, object]]:
    """Yield the rows for a report of the storage service; none for one of an earlier release."""
    scrub = storage.get("scrub")
    if scrub:
        at = f"{datetime.fromisoformat(scrub['finished_at']):%Y-%m-%d %H:%M} UTC"
        what = f"{counted(scrub['versions'], 'version')} ({size_text(scrub['bytes']) or '0 KiB'})"
        found = counted(scrub["problem_count"], "problem") if scrub["problem_count"] else "all whole"
        yield "  verified", f"{at}: {what}, {found}"
    elif storage:
        yield "  verified", "not yet; every night at 02:00 UTC"
    if place := storage.get("blob_place"):
        state = "does not work" if place["problem"] else "works"
        yield "  bodies in", f"{place['name']} at {place['endpoint']}, which {state}"


def object_warnings(storage: JsonObject) -> Iterator[str]:
    place: JsonObject = storage.get("blob_place") or JsonObject()
    if place.get("problem"):
        since = f"{datetime.fromisoformat(place['since']):%Y-%m-%d %H:%M} UTC"
        yield (
            f"The engine that has the bodies of objects cannot be used since {since}: {place['problem']}"
            " Clients get 503 SlowDown until the engine answers again."
        )
    scrub: JsonObject = storage.get("scrub") or JsonObject()
    if scrub.get("problem_count"):
        first = "; ".join(_place(each) for each in scrub["problems"][:FEW])
        yield (
            f"Objects are damaged or missing: {first}. `neo storage verify` lists all; bring them back from a"
            " backup of the folder objects."
        )
    if number := storage.get("orphan_bucket_count"):
        names = ", ".join(f"{each['name']} ({each['id']})" for each in storage["orphan_buckets"][:FEW])
        yield (
            f"The object gateway has {counted(number, 'bucket')} that the control plane does not: {names}."
            " They are kept. One of the two was restored from an older backup, or files were copied."
        )


def _place(problem: JsonObject) -> str:
    where = "/".join(each for each in (problem["bucket"], problem["key"]) if each) or "the store"
    version = f" (version {problem['version_id']})" if problem["version_id"] else ""
    return f"{where}{version}: {problem['what']}"
