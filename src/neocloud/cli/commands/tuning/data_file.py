"""Upload of the user's conversations to the gateway: read and checked here first, with the reader that the
jobs use, and converted to JSONL where needed."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from neocloud.cli.output import say
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway
from neocloud.core.training_data import as_sentence, recipes_folder


@contextmanager
def as_jsonl(data: Path, *options: str) -> Generator[Path]:
    """Yield the data as a JSONL file, and tell how they are read. JSONL is used unchanged, so that line
    numbers in errors match. Raises ClientError that names row and column of what cannot be learnt."""
    check_data(data, *options)
    if data.suffix.lower() == ".jsonl":
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="neo-tune-") as folder:
        target = Path(folder) / f"{data.stem}.jsonl"
        _convert(data, target)
        yield target


def check_data(data: Path, *options: str) -> None:
    """Tell how the data are read. Raises ClientError that names row and column of what cannot be learnt."""
    check_file(data)
    for note in _checked(data, *options):
        say(f"{data.name}: {note}")


def check_file(data: Path) -> None:
    if not data.is_file():
        raise ClientError("INVALID_ARGUMENT", f"There is no file {data}", "Check the path")


def upload(gateway: Gateway, path: Path) -> str:
    """Upload the file and return its id."""
    return gateway.upload(path, "fine-tune")


def first_question(path: Path) -> str:
    """Return the user's first message of the first conversation; "" if the file has another form."""
    with tempfile.TemporaryDirectory(prefix="neo-tune-") as folder:
        target = Path(folder) / "first.jsonl"
        try:
            _convert(path, target)
        except ClientError:
            return ""
        return _first_user_message(target)


def _first_user_message(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        messages = json.loads(file.readline())["messages"]
    return next((message["content"] for message in messages if message["role"] == "user"), "")


def _checked(data: Path, *options: str) -> list[str]:
    """Return what is used of the data, and what is not."""
    report = json.loads(_read(data, "--check", *options))
    if report["errors"]:
        more = f" ({report['error_count']} errors in total.)" if report["error_count"] > 1 else ""
        raise _bad_data(data, as_sentence(report["errors"][0]) + more)
    return report["notes"]


def _convert(data: Path, target: Path) -> None:
    _read(data, "--output", str(target))


def _read(data: Path, *options: str) -> str:
    """Run the recipe that the jobs use, so that both read the same. Return what it printed."""
    done = subprocess.run(
        [sys.executable, str(_script()), str(data), *options], capture_output=True, text=True, check=False
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if ": hint: " not in line]
        raise _bad_data(data, lines[-1] if lines else "no reason was given")
    return done.stdout


def _bad_data(data: Path, reason: str) -> ClientError:
    return ClientError(
        "INVALID_ARGUMENT",
        f"{data} cannot be used: {reason}",
        f"Correct it, or convert it by hand to JSONL, with options: python3 {_script()} {data} --help",
    )


def _script() -> Path:
    return recipe("dataset_convert.py")


def recipe(name: str) -> Path:
    """Return the path of a script of the recipes."""
    try:
        return recipes_folder() / name
    except FileNotFoundError as error:
        raise ClientError("INTERNAL", str(error), "Reinstall the package") from error
