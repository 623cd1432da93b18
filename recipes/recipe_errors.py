"""Turn a failure of a script into one line that says what happened and what to do next.

Every script calls `exit_code(run, options)` from its `main`. An error that a user can cause or fix is a
`RecipeError`; anything else is a bug in the script and keeps its traceback. Imports of installed packages are
in `with needed_packages():`, so that `--help` works where they are missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

Options = TypeVar("Options")

EXIT_OK = 0
EXIT_FAILED = 1  # bad data, missing file, disk full: the message says which
EXIT_USAGE = 2  # argparse uses the same number
EXIT_STOPPED = 75  # stopped on request; a checkpoint is on disk, run the same command again to continue


PACKAGES = "torch transformers peft accelerate trl jsonschema pyarrow sacrebleu rouge-score"
IMPORTED = frozenset({*PACKAGES.split(), "datasets", "jinja2", "numpy", "safetensors", "tokenizers"})
"""Packages that the scripts import; the packages above bring the others."""
_missing: list[str] = []


class RecipeError(Exception):
    """An error that the user can fix; the text says what happened and what to do next.

    `advice` names options of the script. It is printed on a line of its own, since users of a fine-tuning job
    and of `neo tune` have no such options.
    """

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(message)
        self.advice = advice


class BadRecordError(RecipeError):
    """A record of a data set cannot be used; `--skip-bad` leaves it out and counts it."""


def note(text: str) -> None:
    """Write progress and warnings to stderr, so that stdout stays data."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def needed_packages() -> Iterator[None]:
    """Let a script continue without a package that its body imports; `exit_code` says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in IMPORTED:  # also not a part of a package that is installed
            raise
        _missing.append(error.name)


def report(error: RecipeError) -> None:
    """Write the line of an error, and its advice."""
    script = Path(sys.argv[0]).name
    note(f"{script}: error: {error}")
    if error.advice:
        note(f"{script}: hint: {error.advice}")


def exit_code(run: Callable[[Options], int], options: Options) -> int:
    """Run a script's body and turn a known failure into one line and exit code 1."""
    script = Path(sys.argv[0]).name
    try:
        if _missing:
            raise RecipeError(f"the package {_missing[0]} is not installed; run `pip install {PACKAGES}`")
        return run(options)
    except RecipeError as error:
        report(error)
    except FileNotFoundError as error:
        note(f"{script}: error: {error.filename}: no such file; check the path")
    except IsADirectoryError as error:
        note(f"{script}: error: {error.filename}: is a folder, a file is needed")
    except PermissionError as error:
        note(f"{script}: error: {error.filename}: permission denied")
    except BrokenPipeError:  # the reader of our stdout, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        note(f"{script}: error: {error.filename or 'write'}: {error.strerror or error}")
    return EXIT_FAILED
