"""Upload of the user's conversations to the gateway, converted to JSONL where needed."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

import neocloud
from neocloud.client.errors import ClientError
from neocloud.client.gateway import Gateway

_PACKAGE = Path(neocloud.__file__).parent


@contextmanager
def as_jsonl(data: Path) -> Iterator[Path]:
    """Yield the data as a JSONL file. JSONL is used unchanged, so that line numbers in errors match."""
    if not data.is_file():
        raise ClientError("INVALID_ARGUMENT", f"There is no file {data}", "Check the path")
    if data.suffix.lower() == ".jsonl":
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="neo-tune-") as folder:
        target = Path(folder) / f"{data.stem}.jsonl"
        _convert(data, target)
        yield target


def upload(gateway: Gateway, path: Path) -> str:
    """Upload the file and return its id."""
    try:
        with path.open("rb") as file:
            answer = gateway.http.post(
                f"{gateway.base_url}/files",
                headers=gateway.headers(),
                data={"purpose": "fine-tune"},
                files={"file": (path.name, file, "application/jsonl")},
            )
    except httpx.HTTPError as error:
        raise ClientError(
            "UNAVAILABLE",
            f"The gateway at {gateway.base_url} did not accept the file: {error}",
            "Try again; see `neo status`",
        ) from error
    if answer.is_error:
        raise ClientError("INVALID_ARGUMENT", f"The gateway refused {path.name}: {_message(answer)}")
    return answer.json()["id"]


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


def _convert(data: Path, target: Path) -> None:
    """Convert with the recipe that the jobs use, so that both read the same."""
    script = _recipe("dataset_convert.py")
    done = subprocess.run(
        [sys.executable, str(script), str(data), "--output", str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        reported = done.stderr.strip().splitlines() or ["no reason was given"]
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{data} cannot be converted to conversations: {reported[-1]}",
            f"Convert it by hand: python3 {script} {data} --help",
        )


def _recipe(name: str) -> Path:
    for folder in (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes"):
        if (folder / name).is_file():
            return folder / name
    raise ClientError("INTERNAL", f"The recipe {name} is missing", "Reinstall the package")


def _message(answer: httpx.Response) -> str:
    try:
        return answer.json()["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.status_code} {answer.reason_phrase}"
