"""Upload of the user's conversations to the gateway: read and checked here first, with the reader that the
jobs use, and converted to JSONL where needed."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from neocloud.cli.output import JsonObject, say
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway
from neocloud.core.training_data import as_sentence, recipes_folder


class Method(StrEnum):
    SUPERVISED = "supervised"
    DPO = "dpo"
    REINFORCEMENT = "reinforcement"


def method_options(spec: JsonObject) -> list[str]:
    """Return the options of the recipes for the method of a job."""
    method = Method[spec.get("method", "SUPERVISED")]
    return [] if method is Method.SUPERVISED else ["--method", method.value]


def grader_text(path: Path) -> str:
    """Return the JSON of a grader's file, with what is wrong with it found before anything is uploaded."""
    check_file(path)
    text = path.read_text("utf-8", errors="replace")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ClientError("INVALID_ARGUMENT", f"{path} is no JSON: {error}", "Correct it") from error
    return json.dumps(found)


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
        _convert(data, target, *_only_method(options))
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
        for method in Method:
            with suppress(ClientError):
                _convert(path, target, "--method", method.value)
                return _first_user_message(target)
    return ""


def _first_user_message(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        row = json.loads(file.readline())
    messages = row["input"]["messages"] if "input" in row else row["messages"]
    return next((message["content"] for message in messages if message["role"] == "user"), "")


def _checked(data: Path, *options: str) -> list[str]:
    """Return what is used of the data, and what is not."""
    report = json.loads(_read(data, "--check", *options))
    if report["errors"]:
        more = f" ({report['error_count']} errors in total.)" if report["error_count"] > 1 else ""
        raise _bad_data(data, as_sentence(report["errors"][0]) + more)
    return report["notes"]


def _convert(data: Path, target: Path, *options: str) -> None:
    _read(data, "--output", str(target), *options)


def _only_method(options: Sequence[str]) -> Sequence[str]:
    at = options.index("--method") if "--method" in options else len(options)
    return options[at : at + 2]


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
