"""How a recipe script fails: one line that says what happened and what to do next.

Every script calls `exit_code(run, args)` from its `main`. Errors a user can cause or cure are
`RecipeError`; anything else is a bug in the script and keeps its traceback.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

EXIT_OK = 0
EXIT_FAILED = 1  # bad data, missing file, disk full: the message says which
EXIT_USAGE = 2  # argparse uses the same number
EXIT_STOPPED = 75  # asked to stop; a checkpoint is on disk, run the same command again to go on


class RecipeError(Exception):
    """Something the user can cure; the text says what happened and what to do next."""


def note(text: str) -> None:
    """Progress and warnings go to stderr, so that stdout stays data."""
    print(text, file=sys.stderr, flush=True)


def exit_code(run: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a script's body and turn a known failure into one line and exit code 1."""
    script = Path(sys.argv[0]).name
    try:
        return run(args)
    except RecipeError as error:
        note(f"{script}: error: {error}")
    except FileNotFoundError as error:
        note(f"{script}: error: {error.filename}: no such file; check the path")
    except IsADirectoryError as error:
        note(f"{script}: error: {error.filename}: is a folder, a file is needed")
    except PermissionError as error:
        note(f"{script}: error: {error.filename}: permission denied")
    except BrokenPipeError:  # the reader of our stdout, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        note(f"{script}: error: {error.filename or 'write'}: {error.strerror or error}")
    return EXIT_FAILED
