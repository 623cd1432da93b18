"""Safe output: every line that a command prints goes through here.

Logs, names and answers contain text written by a tenant's program or a model. A terminal obeys control
sequences in them: they can hide lines, change the title, or type in the user's name. On a terminal they are
shown as text instead. Piped output is left unchanged.
"""

import re
import sys
from typing import TextIO

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_ENDS = re.compile(r"\r+\n|\r+")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 except tab and newline, C1, and the characters that change the direction of text."""


def visible(text: str) -> str:
    """Return the text without colours, with every other control character escaped, such as \\x1b."""
    plain = _LINE_ENDS.sub("\n", _COLOURS.sub("", text))
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), plain)


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
