"""The checks as a program: `run` prints a report of this node, `serve` answers the other node of a pair.

python -m neocloud.fleet.active run --suite quick
python -m neocloud.fleet.active serve --address 10.0.0.7 --port 5201 --most-seconds 60
python -m neocloud.fleet.active run --check pair_bandwidth --partner 10.0.0.7:5201
"""

import argparse
import os
import pkgutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neocloud.fleet.active import pair, report
from neocloud.fleet.active.catalogue import catalogue, suite_checks
from neocloud.fleet.active.jobs import running_job
from neocloud.fleet.active.run import Runner
from neocloud.fleet.policy.actions import Suite

MOST_SECONDS = 3600
ONE_AT_A_TIME = "\0neocloud-active-checks"
"""An address that one process of a node can have: two runs would measure each other."""
REPORT_SECONDS = 5.0
"""For the report, before the run is ended."""
STOP_SECONDS = 1.0
"""For the end of a server."""


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    for ending in (signal.SIGTERM, signal.SIGALRM):  # children end with this process, and files are removed
        signal.signal(ending, lambda number, frame: sys.exit(128 + number))
    try:
        return given.run(given)
    except OSError as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(given: argparse.Namespace) -> int:
    with _alone(given):
        checks = [each for each in catalogue() if each.name in given.check]
        partner = pair.Partner(given.partner, _token(given)) if given.partner else None
        try:
            _print(_runner(given, partner).run(checks or suite_checks(Suite(given.suite))))
        finally:
            if partner is not None:
                partner.leave()
    return 0


def _serve(given: argparse.Namespace) -> int:
    with _alone(given), socket.create_server((given.address, given.port), family=socket.AF_INET) as server:
        if not given.port:
            sys.stderr.write(f"{server.getsockname()[1]}\n")
            sys.stderr.flush()
        token = _token(given)
        until = time.monotonic() + given.most_seconds - STOP_SECONDS
        serve = lambda: pair.serve(server, until, token)  # noqa: E731
        _print(_runner(given).serve(serve, given.most_seconds))
    return 0


def _token(given: argparse.Namespace) -> str:
    """Return what both nodes of a pair know: of a file, or of the archive that this program came in."""
    if given.token_file is not None:
        return given.token_file.read_text().strip()
    try:
        return (pkgutil.get_data("neocloud.fleet.active", "token") or b"").decode()
    except OSError:
        return ""


def _alone(given: argparse.Namespace) -> socket.socket:
    """Return what keeps other runs away; it is released when this process ends, however it does."""
    signal.alarm(int(given.most_seconds))
    alone = socket.socket(socket.AF_UNIX)
    alone.bind(ONE_AT_A_TIME)
    return alone


def _runner(given: argparse.Namespace, partner: pair.Partner | None = None) -> Runner:
    return Runner(
        host=given.host or socket.gethostname(),
        folder=Path(given.folder),
        stop=running_job if given.stop_for_jobs else lambda: "",
        partner=partner,
        until=time.monotonic() + given.most_seconds - REPORT_SECONDS,
        gives_way=given.stop_for_jobs,
    )


def _print(found: report.Report) -> None:
    data = memoryview(report.encode(found) + b"\n")
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="neocloud.fleet.active", description="Active checks of this node.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = commands.add_parser("run", help="run a suite and print a report")
    run.add_argument("--suite", choices=[each.value for each in Suite], default=Suite.QUICK.value)
    names = [each.name for each in catalogue()]
    run.add_argument("--check", action="append", default=[], choices=names, help="these checks only")
    run.add_argument("--partner", default="", metavar="ADDRESS:PORT", help="a node that serves")
    run.set_defaults(run=_run)
    serve = commands.add_parser("serve", help="answer the other node of a pair for a while")
    serve.add_argument("--address", default="127.0.0.1", help="IPv4; 0.0.0.0 for all of this node")
    serve.add_argument("--port", type=int, default=0, help="a free one without it; it is printed to stderr")
    serve.set_defaults(run=_serve)
    for each in (run, serve):
        each.add_argument("--folder", default="/var/tmp", help="where files are written")  # nosec B108
        each.add_argument("--host", default="", help="name of the node; its own without it")
        each.add_argument("--token-file", type=Path, help="what both nodes of a pair know")
        each.add_argument("--stop-for-jobs", action="store_true", help="end when a job of Slurm starts here")
        each.add_argument("--most-seconds", type=_seconds, default=MOST_SECONDS, help="end after so long")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"from 1 to {MOST_SECONDS}")
    return value


if __name__ == "__main__":
    sys.exit(main())
