# pyright: strict
"""The node agent as a program: `check` prints what this host's checks say, `watch` stays and writes changes.

python -m neocloud.fleet.agent check
python agent.pyz check
python -m neocloud.fleet.agent watch --spool DIR
"""

import argparse
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neocloud.fleet.agent import document
from neocloud.fleet.agent.expected import ExpectationError, Expected, read_expected
from neocloud.fleet.agent.host import HostChecks, Memory
from neocloud.fleet.agent.policy_json import load_policy
from neocloud.fleet.agent.spool import DEFAULT_BYTES, Spool
from neocloud.fleet.agent.tree import Tree
from neocloud.fleet.agent.watch import Agent, watch

DEFAULT_INTERVAL_S = 10.0


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        expected = read_expected(Path(given.expect)) if given.expect else Expected()
        return given.run(given, expected)
    except (ExpectationError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 2 if isinstance(error, ExpectationError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _check(given: argparse.Namespace, expected: Expected) -> int:
    tree = Tree(Path(given.root))
    checks = HostChecks(tree, load_policy(), expected, Memory(tree.boot_id()))
    checks.run()
    if given.seconds > 0:
        time.sleep(given.seconds)
        checks.run()
    os.write(
        sys.stdout.fileno(), document.encode(checks.document(given.host or socket.gethostname())) + b"\n"
    )
    return 0


def _watch(given: argparse.Namespace, expected: Expected) -> int:
    folder = Path(given.spool)
    spool = Spool(folder, given.spool_bytes)
    file = Path(given.metrics_file) if given.metrics_file else None
    tree = Tree(Path(given.root))
    agent = Agent(tree, load_policy(), expected, folder, spool, host=given.host, metrics_file=file)
    watch(agent, given.interval)
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--expect", default="", metavar="FILE", help="what the host should have, as JSON")
    shared.add_argument("--root", default="/", metavar="DIR", help="a tree in the shape of a host's files")
    shared.add_argument("--host", default="", metavar="NAME", help="name of the host; its own without it")
    parser = argparse.ArgumentParser(prog="neocloud.fleet.agent", description="Checks of this host.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", parents=[shared], help="run the checks once and print a document")
    check.add_argument(
        "--seconds", type=_seconds, default=1.0, help="between two readings of counters; 0 for one"
    )
    check.set_defaults(run=_check)
    stay = commands.add_parser("watch", parents=[shared], help="check in intervals and write what changes")
    stay.add_argument("--spool", required=True, metavar="DIR", help="folder for the records")
    stay.add_argument("--spool-bytes", type=int, default=DEFAULT_BYTES, help="most that the records may take")
    stay.add_argument("--interval", type=_interval, default=DEFAULT_INTERVAL_S, help="seconds between checks")
    stay.add_argument("--metrics-file", default="", metavar="FILE", help="also write metrics, for Prometheus")
    stay.set_defaults(run=_watch)
    return parser


def _seconds(text: str) -> float:
    return _between(text, 0, 3600)


def _interval(text: str) -> float:
    return _between(text, 0.1, 3600)


def _between(text: str, least: float, most: float) -> float:
    value = float(text)
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"from {least:g} to {most:g}")
    return value


if __name__ == "__main__":
    sys.exit(main())
