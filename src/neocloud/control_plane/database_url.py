# pyright: strict
"""Read the URL of a PostgreSQL database from the environment or a private file.

It may hold a password, and every user of the machine can read arguments of processes.
"""

import argparse
import os
import stat
from urllib.parse import parse_qs, urlsplit

VARIABLE = "NEOCLOUD_DATABASE_URL"


def take() -> str:
    """Return the URL of the environment and remove it there: programs that are started later do not inherit
    it."""
    return os.environ.pop(VARIABLE, "")


def without_password(text: str) -> str:
    if text and has_password(text):
        raise argparse.ArgumentTypeError(
            "a password in an argument is shown to all users of this machine; "
            f"put the URL into the variable {VARIABLE} or into a file for --database-url-file"
        )
    return text


def in_file(text: str) -> str:
    try:
        descriptor = os.open(text, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="utf-8") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode):
                raise argparse.ArgumentTypeError(f"{text} is no file")
            if found.st_mode & 0o077:
                raise argparse.ArgumentTypeError(f"{text} is open to other users; run: chmod 600 {text}")
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text}: {error}") from None


def has_password(url: str) -> bool:
    """Return whether the URL holds a password, before the host or as a parameter."""
    try:
        parts = urlsplit(url)
        return parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        return True
