"""The data that a job would train on, read here before anything is uploaded: by recipes, as JSON.

What needs the data alone is always there. Tokens need the model's tokenizer, which the cloud hands out, and
the packages that read it; where one of them is missing, the report says `not_run` and why.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from neocloud.cli.commands.tuning.data_file import Method, check_file, method_options, recipe
from neocloud.cli.output import JsonObject
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import MODELS, TUNING_JOBS, ProjectClient
from neocloud.cli.resources.prices import Price, cost_of
from neocloud.cli.storage.places import SCHEME
from neocloud.client.errors import ClientError
from neocloud.core import contract

if TYPE_CHECKING:
    from neocloud.messages.neocloud.tuning.v1 import EstimateFineTuningJobResponse, FineTuningJobSpec

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
PROGRESS = "progress: "
NOT_KNOWN = ("UNIMPLEMENTED", "PERMISSION_DENIED", "FAILED_PRECONDITION", "NOT_FOUND", "UNAVAILABLE")
"""The cloud is of an earlier release, or cannot or may not tell."""


@dataclass(frozen=True)
class TrialReport:
    """`data`, `tokens` and `estimate` of a job that is not created yet."""

    data: JsonObject
    tokens: JsonObject
    estimate: JsonObject

    def document(self) -> JsonObject:
        return {"data": self.data, "tokens": self.tokens, "estimate": self.estimate}


def not_run(reason: str) -> JsonObject:
    return {"state": "not_run", "reason": reason}


def read_data(files: Mapping[str, str], spec: JsonObject) -> JsonObject:
    """Return what is understood of the files that are here, for the method of the job."""
    training, validation = files["training_file"], files.get("validation_file", "")
    if training.startswith(SCHEME):
        return not_run(f"the data lie in a bucket; copy them here to see them: neo storage cp {training} .")
    options = [training, *method_options(spec)]
    check_file(Path(training))
    if validation and not validation.startswith(SCHEME):
        check_file(Path(validation))
        options += ["--validation", validation]
    with tempfile.TemporaryDirectory(prefix="neo-tune-") as folder:
        if grader := spec.get("grader"):
            (Path(folder) / "grader.json").write_text(grader)
            options += ["--grader", str(Path(folder) / "grader.json")]
        return {"state": "done", **_run("dataset_report.py", options, "Read the data")}


def error_in(data: JsonObject) -> str:
    """Return why the data cannot be trained on; "" where they can."""
    for found in files_of(data):
        bad = [group for group in found["groups"] if group["is_error"]]
        error = found["error"] or (f"{bad[0]['places'][0]}: {bad[0]['reason']}" if bad else "")
        if error:
            return f"{found['file']}: {error}"
    return ""


def has_personal_data(data: JsonObject) -> bool:
    return any(found["personal_data"] for found in files_of(data))


def files_of(data: JsonObject) -> list[JsonObject]:
    """Return what is said of the training data, and of those to evaluate on."""
    return [data[name] for name in ("training", "validation") if data.get(name)]


def with_estimate(
    cloud: ProjectClient, base_id: str, spec: "FineTuningJobSpec", data: JsonObject, path: str, price: Price
) -> TrialReport:
    """Return the whole report. `spec` is that of the job as the cloud would create it."""
    if data["state"] != "done" or error_in(data):
        reason = data.get("reason") or "the data cannot be trained on"
        return TrialReport(data, not_run(reason), not_run(reason))
    wanted: JsonObject = contract.to_document(spec)
    size = {name: data["training"][name] for name in ("conversations", "bytes", "longest_bytes")}
    try:
        found = _estimated(cloud, spec, size)
    except ClientError as error:
        if error.code not in NOT_KNOWN:
            raise
        return TrialReport(data, _tokens(cloud, base_id, path, 0, wanted), not_run(error.message))
    tokens = _tokens(cloud, base_id, path, found.hyperparameters.context_length, wanted)
    if tokens.get("tokens"):
        found = _estimated(cloud, spec, {**size, "tokens": tokens["tokens"]})
    return TrialReport(data, tokens, _estimate_document(found, tokens, price))


def _estimate_document(
    found: "EstimateFineTuningJobResponse", tokens: JsonObject, price: Price
) -> JsonObject:
    document = contract.to_document(found)
    known = bool(document.get("measured_job_id"))
    return {
        "state": "done",
        "are_tokens_counted": bool(tokens.get("tokens")),
        **document,
        "trained_tokens": found.trained_tokens,
        "seconds": document["seconds"] if known else None,
        "cost": cost_of(price, found.seconds / 3600) if known else None,
        "currency": price.currency,
    }


def _estimated(
    cloud: ProjectClient, spec: "FineTuningJobSpec", size: JsonObject
) -> "EstimateFineTuningJobResponse":
    method = contract.method(f"{TUNING_JOBS}/Estimate")
    request = contract.from_dict(method.input, {"parent_id": cloud.project, "data": size})
    request.spec.CopyFrom(spec)
    return cloud.client.call(f"{TUNING_JOBS}/Estimate", request)


def _tokens(cloud: ProjectClient, base_id: str, path: str, context: int, spec: JsonObject) -> JsonObject:
    """Return the tokens of the data by the tokenizer of the base, which is fetched for it."""
    if spec.get("method") == Method.REINFORCEMENT.name:
        return not_run("the model writes the answers while it trains")
    with tempfile.TemporaryDirectory(prefix="neo-tune-") as folder:
        try:
            files = cloud.client.call(f"{MODELS}/ReadTokenizer", {"id": base_id}).files
        except ClientError as error:
            if error.code not in NOT_KNOWN:
                raise
            return not_run(f"the base's tokenizer cannot be had: {error.message}")
        for each in files:
            if not _FILE_NAME.fullmatch(each.name):
                return not_run(f"the cloud named a file of the tokenizer {each.name[:80]!r}")
            (Path(folder) / each.name).write_bytes(each.content)
        options = [path, "--model", folder, "--context", str(context), *method_options(spec)]
        return _run("token_report.py", options, "Count the tokens")


def _run(script: str, options: list[str], title: str) -> JsonObject:
    """Return what a recipe prints. Raises ClientError with its last line where it fails."""
    command = [sys.executable, str(recipe(script)), *options]
    last = ""
    with (
        stage(title) as detail,
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True
        ) as process,
    ):
        for line in process.stderr or ():
            if line.startswith(PROGRESS):
                detail(line.removeprefix(PROGRESS).strip())
            elif line.strip():
                last = line.strip()
        if process.wait():
            raise ClientError("INTERNAL", f"{script} ended with {process.returncode}: {last[-500:]}")
        output.seek(0)
        return json.load(output)
