"""Output of commands: lines that are safe on a terminal, errors, and exit codes.

Logs, names and answers contain text written by a tenant's program or a model. A terminal obeys control
sequences in them: they can hide lines, change the title, or type in the user's name. On a terminal they are
shown as text instead. Piped output is left unchanged.

An error is one or two sentences on stderr, with an exit code that scripts can distinguish. The user never
sees a traceback: an unexpected exception is reported as a defect, with the details in a file.
"""

import re
import sys
import tempfile
import traceback
from types import TracebackType
from typing import TextIO

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_ENDS = re.compile(r"\r+\n|\r+")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 except tab and newline, C1, and the characters that change the direction of text."""
_NOT_IN_LINES = re.compile(rf"{_CONTROLS.pattern}|[\t\n\u2028\u2029\ud800-\udfff]")
"""All of these, what else ends a line or a column, and parts of characters that no encoding has."""
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
EXIT_GATE = 8
EXIT_CODE_MEANINGS = {
    0: "done",
    1: "failed",
    2: "wrong usage: an unknown option, or a value that the cloud rejects",
    3: "not found",
    4: "denied: not signed in, or permission missing",
    5: "the cloud is not running or does not answer",
    6: "not enough resources or quota",
    7: "the name is already in use",
    EXIT_GATE: "a gate refused the model: a rule on its evaluation failed",
    129: "stopped by SIGHUP, as when its terminal is closed",
    130: "interrupted with Ctrl-C",
    143: "stopped by SIGTERM",
}


def visible(text: str) -> str:
    """Return the text without colours, with every other control character escaped, such as \\x1b."""
    plain = _LINE_ENDS.sub("\n", _COLOURS.sub("", text))
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), plain)


def one_line(text: str) -> str:
    """Return the text as one line: every control character and line end is escaped, such as \\n and \\x1b."""
    return _NOT_IN_LINES.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def write(text: str, file: TextIO | None = None) -> None:
    """Write to stdout or the given stream; on a terminal, control characters are escaped."""
    stream = file or sys.stdout
    stream.write(visible(text) if stream.isatty() else text)
    stream.flush()


def write_bytes(data: bytes) -> None:
    """Write a program's output to stdout, byte for byte unless stdout is a terminal."""
    if sys.stdout.isatty():
        write(data.decode(errors="replace"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def echo(text: object = "", *, nl: bool = True) -> None:
    """Print a line of the result to stdout."""
    write(f"{text}\n" if nl else str(text))


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
