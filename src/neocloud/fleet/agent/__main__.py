"""The node agent as a program: `check` prints what this host's checks say, `watch` stays and writes changes.

python -m neocloud.fleet.agent check
python agent.pyz check
python -m neocloud.fleet.agent watch --spool DIR
python -m neocloud.fleet.agent carry --spool DIR --last DIR --after N --of ID
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

from neocloud.fleet.agent import delivery, document, hardware
from neocloud.fleet.agent.expected import ExpectationError, Expected, read_expected
from neocloud.fleet.agent.host import HostChecks, Memory, since_boot
from neocloud.fleet.agent.host_files import Tree
from neocloud.fleet.agent.loop import Agent, watch
from neocloud.fleet.agent.plan import DEFAULT_INTERVAL_S
from neocloud.fleet.agent.policy_json import load_policy
from neocloud.fleet.agent.spool import DEFAULT_BYTES, Spool


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
    try:
        return given.run(given)
    except (ExpectationError, OSError) as error:
        print(f"Error: {error}", file=sys.stderr)  # noqa: T201 - a program of its own
        return 2 if isinstance(error, ExpectationError) else 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _expected(given: argparse.Namespace) -> Expected:
    return read_expected(Path(given.expect)) if given.expect else Expected()


def _check(given: argparse.Namespace) -> int:
    tree, expected = Tree(Path(given.root)), _expected(given)
    checks = HostChecks(tree, load_policy(), expected, Memory(tree.boot_id()), is_pod=given.pod)
    checks.run()
    if given.seconds > 0:
        time.sleep(given.seconds)
        checks.run()
    os.write(
        sys.stdout.fileno(), document.encode(checks.document(given.host or socket.gethostname())) + b"\n"
    )
    return 0


def _inventory(given: argparse.Namespace) -> int:
    host = given.host or socket.gethostname()
    found = hardware.read(Tree(Path(given.root)), host, is_pod=given.pod)
    os.write(sys.stdout.fileno(), hardware.encode(found) + b"\n")
    return 0


def _watch(given: argparse.Namespace) -> int:
    folder, expected = Path(given.spool), _expected(given)
    spool = Spool(folder, given.spool_bytes)
    agent = Agent(
        *(Tree(Path(given.root)), load_policy(), expected, folder, spool),
        host=given.host,
        last=Path(given.last) if given.last else None,
        is_pod=given.pod,
        metrics_file=Path(given.metrics_file) if given.metrics_file else None,
    )
    watch(agent, given.interval)
    return 0


def _carry(given: argparse.Namespace) -> int:
    said = delivery.answer(
        *(Path(given.spool), Path(given.last), delivery.read_program(sys.argv[0])),
        after=given.after,
        of=given.of,
        trusted=given.trusted,
        now=since_boot(),
        inventory=given.inventory,
    )
    sys.stdout.buffer.write(said)
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--expect", default="", metavar="FILE", help="expected parts of the host, as JSON")
    shared.add_argument("--root", default="/", metavar="DIR", help="a tree in the shape of a host's files")
    shared.add_argument("--host", default="", metavar="NAME", help="name of the host; its own without it")
    shared.add_argument("--pod", action="store_true", help="only what belongs to this container")
    parser = argparse.ArgumentParser(prog="neocloud.fleet.agent", description="Checks of this host.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    check = commands.add_parser("check", parents=[shared], help="run the checks once and print a document")
    check.add_argument(
        "--seconds", type=_seconds, default=1.0, help="between two readings of counters; 0 for one"
    )
    check.set_defaults(run=_check)
    parts = commands.add_parser("inventory", parents=[shared], help="print the parts of this host")
    parts.set_defaults(run=_inventory)
    stay = commands.add_parser("watch", parents=[shared], help="check in intervals and write what changes")
    stay.add_argument("--spool", required=True, metavar="DIR", help="folder for the records")
    stay.add_argument("--spool-bytes", type=int, default=DEFAULT_BYTES, help="most that the records may take")
    stay.add_argument("--interval", type=_interval, default=DEFAULT_INTERVAL_S, help="seconds between checks")
    stay.add_argument("--last", default="", metavar="DIR", help="folder for the last answers of the checks")
    stay.add_argument("--metrics-file", default="", metavar="FILE", help="also write metrics, for Prometheus")
    stay.set_defaults(run=_watch)
    ask = commands.add_parser("carry", help="print records that were not forwarded yet, and drop the others")
    ask.add_argument("--spool", required=True, metavar="DIR", help="folder of the records")
    ask.add_argument("--last", required=True, metavar="DIR", help="folder of the last answers of the checks")
    ask.add_argument(
        "--after", type=int, default=0, metavar="N", help="the last record that is stored permanently"
    )
    ask.add_argument("--of", default="", metavar="ID", help="the spool that N is of")
    ask.add_argument("--trusted", default="", metavar="CHECKS", help="checks that may keep jobs away")
    ask.add_argument("--inventory", default="", metavar="ID", help="the list of parts that the asker has")
    ask.set_defaults(run=_carry)
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
