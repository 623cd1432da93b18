"""Failure of a command: one or two sentences on stderr, and an exit code that scripts can distinguish.

The user never sees a traceback. An unexpected exception is reported as a defect, with the details in a file.
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
    2: "wrong usage: an unknown option, or a value that the cloud rejects",
    3: "not found",
    4: "denied: not signed in, or permission missing",
    5: "the cloud is not running or does not answer",
    6: "not enough resources or quota",
    7: "the name is already in use",
    130: "interrupted with Ctrl-C",
}


def exit_code(code: str) -> int:
    """Return the exit code for a gRPC status name; 1 if it has none of its own."""
    return EXIT_CODES.get(code, 1)


def report(message: str) -> None:
    write(f"neo: {message}\n", sys.stderr)


def report_defect(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Exception hook: save the traceback to a file and tell the user how to report it."""
    with tempfile.NamedTemporaryFile("w", prefix="neo-defect-", suffix=".txt", delete=False) as file:
        traceback.print_exception(kind, error, trace, file=file)
    report(f"this is a defect in neo itself ({kind.__name__}). Please report it with the file {file.name}.")
