"""Text on its way to a terminal. Everything that a command prints goes through here.

Logs, names and answers hold what a tenant's program or a model wrote. A terminal obeys control sequences in
them: they can hide lines, change the title, or answer in the person's name. On a terminal they are shown as
text instead. Where the output is piped it is left as it is.
"""

import re
import sys
from typing import TextIO

_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")
_LINE_ENDS = re.compile(r"\r+\n|\r+")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""C0 but for tab and newline, C1, and the characters that reverse the direction of text."""


def visible(text: str) -> str:
    """The text without colours, and with every other control character as an escape such as \\x1b."""
    plain = _LINE_ENDS.sub("\n", _COLOURS.sub("", text))
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), plain)


def write(text: str, file: TextIO | None = None) -> None:
    """To stdout unless another stream is given; control characters are shown where that is a terminal."""
    stream = file or sys.stdout
    stream.write(visible(text) if stream.isatty() else text)
    stream.flush()


def write_bytes(data: bytes) -> None:
    """What a program printed, to stdout: byte for byte unless that is a terminal."""
    if sys.stdout.isatty():
        write(data.decode(errors="replace"))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def echo(text: object = "", *, nl: bool = True) -> None:
    """A line of the result."""
    write(f"{text}\n" if nl else str(text))
