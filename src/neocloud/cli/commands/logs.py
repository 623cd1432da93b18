"""`neo logs`: print the server's log, filtered by resource, level and time, or the log of a workload."""

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import IO, Annotated

import typer

from neocloud.cli.commands.workload_log import is_workload, print_workload_log
from neocloud.cli.lazy import command_group
from neocloud.cli.machine.home import Home
from neocloud.cli.output import say
from neocloud.cli.resources.lookup import (
    AI_JOBS,
    CLUSTERS,
    DEPLOYMENTS,
    ENDPOINTS,
    INSTANCES,
    PROJECTS,
    ProjectClient,
    ProjectOption,
    id_of,
    is_id_of,
    names_of,
)
from neocloud.cli.resources.noun import Parent
from neocloud.cli.resources.products import PRODUCTS
from neocloud.cli.target import current_is_remote, home_of, profile_of_home
from neocloud.cli.terminal import write
from neocloud.client.connection import Client, connect
from neocloud.client.errors import ClientError
from neocloud.client.profiles import exists_in_home

POLL_SECONDS = 0.3
INTERRUPTED = 130
_NO_ANSWER = frozenset({"UNAVAILABLE", "UNAUTHENTICATED"})
_HEADER = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)"
    r" (?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) (?P<logger>[\w.]+):? (?P<message>.*)"
)
_SEARCH = re.compile(r"(\[[^]]*\]:? )?'[\w.]+/GetByName' NOT_FOUND:")
"""How the server logs the search for a name among resources of a kind that has none."""
_SPAN = re.compile(r"(\d+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}

app = command_group()


class Level(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


_ORDER = [level.value.upper() for level in Level]


@dataclass(frozen=True)
class Record:
    """One record of the log: a line in text or JSON form, with the lines of its traceback."""

    text: str
    fields: Mapping[str, object]
    """`time level logger message`, and in JSON form the bound fields, such as `resource`."""
    is_json: bool

    @property
    def time(self) -> datetime | None:
        try:
            moment = datetime.fromisoformat(str(self.fields.get("time", "")).replace(",", "."))
        except ValueError:
            return None
        return moment if moment.tzinfo else moment.astimezone()

    def mentions(self, words: re.Pattern[str]) -> bool:
        return words.search(self.text) is not None

    @property
    def is_search(self) -> bool:
        message, logger = (str(self.fields.get(key, "")) for key in ("message", "logger"))
        return logger.endswith(".pipeline") and _SEARCH.match(message) is not None

    def as_text(self) -> str:
        if not self.is_json:
            return self.text
        field = {key: str(value) for key, value in self.fields.items() if value not in (None, "")}
        bound = "".join(f" [{field[key]}]" for key in ("resource", "attempt", "request_id") if key in field)
        head = f"{field.get('time', '')} {field.get('level', '')} {field.get('logger', '')}:{bound}"
        trace = field.get("exception") or field.get("exc_info") or ""
        return f"{head} {field.get('message', '')}" + (f"\n{trace}" if trace else "")

    def as_json(self) -> str:
        return self.text if self.is_json else json.dumps(dict(self.fields), ensure_ascii=False)


@dataclass(frozen=True)
class Filter:
    words: re.Pattern[str] | None = None
    since: datetime | None = None
    level: Level = Level.DEBUG

    def accepts(self, record: Record) -> bool:
        level = str(record.fields.get("level", "")).upper()
        if level in _ORDER and _ORDER.index(level) < _ORDER.index(self.level.value.upper()):
            return False
        if self.since is not None and (record.time is None or record.time < self.since):
            return False
        return self.words is None or (record.mentions(self.words) and not record.is_search)


@app.command()
def logs(
    context: typer.Context,
    resource: Annotated[
        str,
        typer.Argument(
            help="Id or name of a resource, to print only the lines about it.",
            autocompletion=names_of(INSTANCES, CLUSTERS, DEPLOYMENTS, ENDPOINTS, AI_JOBS),
        ),
    ] = "",
    workload: Annotated[
        bool,
        typer.Option(
            "--workload",
            "-w",
            help="Print what runs in the resource instead: a machine's serial console, a Slurm cluster's"
            " newest job, the model server of a deployment, a fine-tuning job's training, the program of an"
            " endpoint or a job.",
        ),
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")] = False,
    since: Annotated[str, typer.Option(help="Start: 30s, 15m, 12h, 7d, or a time in UTC.")] = "",
    level: Annotated[Level, typer.Option(help="Lowest level to print.")] = Level.DEBUG,
    output: Annotated[
        LogFormat, typer.Option("--output", "-o", help="Format of the lines; json: an object per line.")
    ] = LogFormat.TEXT,
    home: Annotated[
        Path | None, typer.Option(envvar="NEOCLOUD_HOME", help="State folder of the cloud.")
    ] = None,
    project: ProjectOption = "",
) -> None:
    """Print the log of the cloud's server, or with --workload the log of what runs in a resource.

    With a resource, prints the lines that contain its id or name, without those of searches for the name. The
    previous log file, if any, is printed first. From another machine than the server's only logs of workloads
    can be read, so --workload can be left out there.

    Examples:

      neo logs --since 15m --level warning
      neo logs computeinstance-e00abc --follow
      neo logs web --output json
      neo logs assistant --workload
    """
    for_server = _options_for_server(since, level, output)
    if workload and (not resource or for_server):
        why = f"{for_server} is for the server's log" if for_server else "it needs the name of a resource"
        raise typer.BadParameter(why, param_hint="--workload")
    is_general = bool(resource) and not for_server and home is None
    cloud_home = None if workload else _home_to_read(context, home, is_general=is_general)
    if cloud_home is None:
        print_workload_log(context, resource, project, follow=follow)
        return
    file = cloud_home.log_file
    started_at = start_of(since, datetime.now(UTC)) if since else None
    words, is_unknown = _words_of(cloud_home, resource, project) if resource else (set[str](), False)
    chosen = Filter(_any_of(words) if words else None, started_at, level)
    try:
        printed = _print(records(lines(file, follow=follow and not is_unknown)), chosen, output)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if is_unknown and not printed:
        step = "`neo ls` lists what is in the project, and --project names another"
        raise ClientError("NOT_FOUND", f"There is no resource {resource!r}, and no line about one", step)
    if is_unknown:
        say(f"There is no resource {resource!r} any more.")
    elif not printed:
        say("The log has no such lines.")
    elif any(map(is_workload, words)):
        say(f"This is the server's log. What runs in it prints: neo logs {quote(resource)} --workload")


def _options_for_server(since: str, level: Level, output: LogFormat) -> str:
    """Return the first option that selects lines of the server's log; "" if there is none."""
    given = {
        "--since": bool(since),
        "--level": level is not Level.DEBUG,
        "--output": output is not LogFormat.TEXT,
    }
    return next((option for option, is_given in given.items() if is_given), "")


def _home_to_read(context: typer.Context, given: Path | None, *, is_general: bool) -> Home | None:
    """Return the state folder with the server's log, or None and say why the workload's log is printed.

    `is_general`: the options name a resource, but neither log. Raises ClientError without a log otherwise.
    """
    try:
        home = _home_with_log(context, given)
    except ClientError as error:
        if not is_general:
            raise
        why = "may be read by root only" if error.code == "PERMISSION_DENIED" else "is not on this machine"
        say(f"The server's log {why}; this is the log of what runs in the resource.")
        return None
    if is_general and current_is_remote(context):
        say(
            "The profile names no cloud on this machine; this is the log of what runs in the resource."
            f" To print the server's log in {home.path} add --home {home.path}"
        )
        return None
    return home


def _home_with_log(context: typer.Context, given: Path | None) -> Home:
    """Return the state folder. Raises ClientError if there is no log in it."""
    home = Home(home_of(context, given))
    if not exists_in_home(home.log_file) and not exists_in_home(older_file(home.log_file)):
        raise ClientError(
            "NOT_FOUND",
            f"There is no log in {home.path}",
            f"Start a cloud there with `neo up --home {quote(str(home.path))}`, or name another with --home",
        )
    return home


def _print(found: Iterable[Record], chosen: Filter, output: LogFormat) -> int:
    """Print the accepted records and return their number."""
    printed = 0
    for record in found:
        if chosen.accepts(record):
            write((record.as_json() if output is LogFormat.JSON else record.as_text()) + "\n")
            printed += 1
    return printed


def start_of(text: str, now: datetime) -> datetime:
    """Return the time named by a span such as 15m, or by a date or time in UTC."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        try:
            return now - timedelta(**{_UNITS[span[2]]: int(span[1])})
        except (OverflowError, ValueError) as error:
            raise ClientError(
                "INVALID_ARGUMENT", f"{text} is too long ago", "Leave out --since to print the whole log"
            ) from error
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ClientError(
            "INVALID_ARGUMENT", f"{text!r} is not a time", "Write 15m, 12h, 7d or 2026-11-01T08:00:00"
        ) from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def older_file(file: Path) -> Path:
    """Return the file that the previous log was rotated to."""
    return file.with_name(f"{file.name}.1")


def lines(file: Path, *, follow: bool, sleep: Callable[[float], None] = time.sleep) -> Iterator[str | None]:
    """Iterate over the lines of the rotated file and the file itself; None when there are no more for now.

    While following, a file that was rotated or truncated is read again from its start.
    """
    if older_file(file).exists():
        with older_file(file).open(encoding="utf-8", errors="replace") as older:
            yield from older
    while not file.exists():
        if not follow:
            return
        sleep(POLL_SECONDS)
    current = _open(file)
    partial = ""
    try:
        while True:
            piece = current.readline()
            if piece.endswith("\n"):
                yield partial + piece
                partial = ""
                continue
            partial += piece
            if not follow:
                break
            yield None
            if file.exists() and _was_replaced(current, file):
                current.close()
                current, partial = _open(file), ""
            else:
                sleep(POLL_SECONDS)
    finally:
        current.close()
    if partial:
        yield partial


def records(found: Iterable[str | None]) -> Iterator[Record]:
    """Join lines to records: lines without a header, such as tracebacks, belong to the line before them."""
    pending: list[str] = []
    for line in found:
        if line is None or _begins_record(line):
            if pending:
                yield _record(pending)
            pending = []
        if line is not None and line.strip():
            pending.append(line.rstrip("\n"))
    if pending:
        yield _record(pending)


def _begins_record(line: str) -> bool:
    return line.startswith("{") or _HEADER.match(line) is not None


def _record(texts: list[str]) -> Record:
    text = "\n".join(texts)
    if texts[0].startswith("{"):
        try:
            fields = json.loads(texts[0])
        except ValueError:
            return Record(text, {"message": text}, is_json=False)
        return Record(text, fields, is_json=True)
    match = _HEADER.match(texts[0])
    if match is None:
        return Record(text, {"message": text}, is_json=False)
    return Record(text, {**match.groupdict(), "message": text[match.start("message") :]}, is_json=False)


def _open(file: Path) -> IO[str]:
    return file.open(encoding="utf-8", errors="replace")


def _was_replaced(current: IO[str], file: Path) -> bool:
    known, present = os.fstat(current.fileno()), file.stat()
    return known.st_ino != present.st_ino or present.st_size < current.tell()


def _any_of(words: set[str]) -> re.Pattern[str]:
    alternatives = "|".join(re.escape(word) for word in sorted(words))
    return re.compile(rf"(?<![\w-])(?:{alternatives})(?![\w-])")


def _words_of(home: Home, resource: str, project: str) -> tuple[set[str], bool]:
    """Return the resource's id and name, and whether the cloud runs and has no such name.

    Ids of a name are known only while the cloud runs.
    """
    words, is_unknown = {resource}, False
    kinds = (CLUSTERS, *(noun.service for product in PRODUCTS.values() for noun in product.nouns))
    if not any(is_id_of(kind, resource) for kind in kinds) and home.server() is not None:
        profile = profile_of_home(home.path, "home")
        with connect(profile, version="") as client:
            cloud = ProjectClient(client, profile, profile.project_id)
            project_id = id_of(cloud, PROJECTS, project) or profile.project_id
            try:
                words |= set(
                    _ids_of(client, {Parent.PROJECT: project_id, Parent.TENANT: profile.tenant_id}, resource)
                )
            except ClientError as error:
                if error.code not in _NO_ANSWER:
                    raise
            else:
                is_unknown = words == {resource}
    return words, is_unknown


def _ids_of(client: Client, parents: Mapping[Parent, str], name: str) -> Iterator[str]:
    """Iterate over the ids of the resources of this name in the project and its tenant."""
    services = [
        (noun.service, parents[noun.parent])
        for product in PRODUCTS.values()
        for noun in product.nouns
        if noun.parent in parents and {"Get", "GetByName"} <= set(noun.verbs)
    ]
    for service, parent_id in ((CLUSTERS, parents[Parent.PROJECT]), *services):
        try:
            yield client.call(f"{service}/GetByName", {"parent_id": parent_id, "name": name}).metadata.id
        except ClientError as error:
            if error.code in _NO_ANSWER:
                raise
