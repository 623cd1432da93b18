"""How a command fails: one sentence or two on stderr, and an exit code that scripts can tell apart.

A person never sees a traceback. What nobody foresaw is a defect: it is said so, and the details go to a file.
"""

import sys
import tempfile
import traceback
from types import TracebackType

from neocloud.cli.terminal import write

EXIT_CODES = {
    "INVALID_ARGUMENT": 2,
    "OUT_OF_RANGE": 2,
    "NOT_FOUND": 3,
    "PERMISSION_DENIED": 4,
    "UNAUTHENTICATED": 4,
    "UNAVAILABLE": 5,
    "RESOURCE_EXHAUSTED": 6,
    "ALREADY_EXISTS": 7,
}
EXIT_CODE_MEANINGS = {
    0: "done",
    1: "failed",
    2: "wrong use: an unknown option, or a value that the cloud refuses",
    3: "not found",
    4: "denied: not signed in, or without the permission",
    5: "the cloud does not answer or is not running",
    6: "not enough resources or quota",
    7: "the name is taken",
    130: "interrupted with Ctrl-C",
}


def exit_code(code: str) -> int:
    """The exit code for a gRPC status name; 1 for everything that has none of its own."""
    return EXIT_CODES.get(code, 1)


def report(message: str) -> None:
    write(f"neo: {message}\n", sys.stderr)


def report_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """An exception hook: keep the details for the report of a defect, tell the person only what to do."""
    with tempfile.NamedTemporaryFile("w", prefix="neo-defect-", suffix=".txt", delete=False) as file:
        traceback.print_exception(kind, error, trace, file=file)
    report(f"this is a defect in neo itself ({kind.__name__}). Please report it with the file {file.name}.")
