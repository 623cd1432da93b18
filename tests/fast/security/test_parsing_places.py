"""Parsers of what a tenant wrote stand where they were looked at, and never run inside the write transaction.

The list below is the whole of it: a new call of such a parser in a service, the server or the core fails here
until somebody has seen that its input is bounded and that it runs before the transaction (as
`Rules.request_violations` do), or that it reads what the cloud wrote itself.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import neocloud
from neocloud.core.store.group_commit import refuse_while_writing

pytestmark = pytest.mark.slow

ROOT = Path(neocloud.__file__).parent
SEARCHED = ("core", "data_plane", "server", "services")
PARSERS = {
    "yaml.load",
    "yaml.parse",
    "yaml.safe_load",
    "yaml.compose",
    "json.loads",
    "jwt.decode",
    "shlex.split",
    "ast.parse",
    "ast.literal_eval",
    "load_pem_public_key",
    "load_der_public_key",
    "load_pem_x509_certificate",
    "load_ssh_public_key",
    "pickle.loads",
    "ElementTree.fromstring",
    "tomllib.loads",
    "msgspec.json.decode",
    "msgspec.json.Decoder",
    "msgspec.yaml.decode",
}
GUARDED = {
    "core/ssh_keys.py": {"load_ssh_public_key"},
    "services/compute/rules/yaml_outline.py": {"yaml.parse"},
    "services/ai/rules.py": {"shlex.split"},
    "services/compute/rules/user_data.py": {"json.loads"},
    "services/iam/rules/federations.py": {"json.loads"},
    "services/iam/rules/keys.py": {"load_pem_public_key"},
}
"""Parsers of tenants' texts, checked with their requests: each function asserts that no transaction is open.
"""
OUTSIDE = {
    "core/contract/json_codec.py": {"json.loads"},
    "core/evaluation_gate.py": {"json.loads"},  # 16 KiB; in jobs by tuning/rules, which refuses a transaction
    "services/billing/api/usage.py": {"json.loads"},
    "services/iam/access/federation.py": {"json.loads", "jwt.decode"},
    "services/iam/access/outgoing.py": {"json.loads"},
    "services/iam/access/tokens.py": {"json.loads", "jwt.decode"},
    "services/iam/api/token_exchange.py": {"jwt.decode"},
    "services/slurm/api/rest.py": {"json.loads"},
    "services/tuning/rules/methods.py": {"json.loads"},  # 64 KiB; it refuses a transaction
}
"""Parsers of callers' data in handlers before they write; bounded by the size of a request or a text."""


FILES_AND_OUTPUT = {
    "services/ai/logs.py": {"json.loads"},
    "services/compute/disk_export.py": {"json.loads"},
    "services/compute/disk_import.py": {"json.loads"},
    "services/compute/reconcile/disk_export_pod.py": {"json.loads"},
    "services/compute/reconcile/image_import.py": {"json.loads"},
    "services/inference/public.py": {"json.loads"},
    "core/known_answers.py": {"msgspec.json.decode"},  # in clients: a file of their user's
    "services/inference/reconcile/quality_test.py": {"msgspec.json.decode"},
    "services/inference/reconcile/quantized_weights.py": {"msgspec.json.decode"},
    "services/inference/reconcile/weights.py": {"json.loads"},
    "services/registry/image_documents.py": {"json.loads"},
    "services/slurm/api/findings.py": {"msgspec.json.decode"},
    "services/slurm/api/probes/ranks.py": {"json.loads"},  # runs inside the cluster, as the job's user
    "services/slurm/api/rank_reports.py": {"msgspec.json.decode"},
    "services/tuning/reconcile/record.py": {"json.loads"},
    "services/tuning/work_folder.py": {"json.loads"},
}
"""Parsers of tenants' files and containers, read between transactions; each read is bounded by bytes."""
OWN = {
    "core/announcements.py": {"json.loads"},  # in clients: a file of root's, bounded
    "core/child_process.py": {"json.loads"},
    "core/training_data.py": {"json.loads"},  # the report of its own process
    "core/store/event_log.py": {"json.loads"},  # archives that the store wrote
    "core/store/rows.py": {"json.loads"},
    "server/changes.py": {"json.loads"},
    "services/ai/__init__.py": {"json.loads"},
    "services/iam/access/authentication.py": {"json.loads"},
    "services/iam/access/temporary_keys.py": {"json.loads"},  # what was sealed here, and is opened first
    "services/ai/types.py": {"json.loads"},
    "services/storage/object_clients.py": {"json.loads"},
    "services/audit/api.py": {"json.loads"},
    "services/audit/rules.py": {"json.loads"},
    "services/billing/rules/price_list.py": {"yaml.load"},
    "services/billing/tco/plan.py": {"yaml.safe_load"},
    "services/compute/catalogue.py": {"yaml.safe_load"},
    "services/compute/reconcile/machine_scope.py": {"json.loads"},
    "services/compute/reconcile/copies.py": {"json.loads"},
    "services/compute/reconcile/volumes.py": {"json.loads"},
    "services/compute/started_pod.py": {"json.loads"},
    "services/compute/types.py": {"json.loads"},
    "services/iam/access/passwords.py": {"json.loads"},
    "services/iam/access/sessions.py": {"json.loads"},
    "services/fleet/checks/run_record.py": {"json.loads"},  # of its own log
    "services/monitoring/history.py": {"json.loads"},  # answers of the cloud's own store of metrics
    "services/quotas/rules.py": {"yaml.safe_load"},
    "services/registry/image_pulls.py": {"json.loads"},
    "services/registry/types.py": {"json.loads"},
    "services/storage/types.py": {"json.loads"},
    "services/inference/reconcile/slurm_submissions.py": {"json.loads"},
    "services/tuning/types.py": {"json.loads"},
}
"""Parsers of the cloud's or its operator's own data."""


def calls(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in PARSERS:
                yield name


def found() -> dict[str, set[str]]:
    files = [file for part in SEARCHED for file in (ROOT / part).rglob("*.py")]
    names = {str(file.relative_to(ROOT)): set(calls(file.read_text())) for file in files}
    return {file: parsers for file, parsers in names.items() if parsers}


def test_the_search_sees_calls() -> None:
    assert list(calls("import yaml\nx = [yaml.safe_load(y) for y in z]")) == ["yaml.safe_load"]


def test_every_parser_of_what_tenants_write_is_known() -> None:
    known = GUARDED | OUTSIDE | FILES_AND_OUTPUT | OWN
    new = {file: parsers - known.get(file, set()) for file, parsers in found().items()}
    assert not {file: parsers for file, parsers in new.items() if parsers}
    assert not set(known) - set(found()), "these parse nothing any more; take them off the list"


def test_parsers_of_requests_refuse_to_run_inside_a_transaction() -> None:
    for file, parsers in GUARDED.items():
        tree = ast.parse((ROOT / file).read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
            text = ast.unparse(function)
            if any(f"{parser}(" in text for parser in parsers):
                assert f"{refuse_while_writing.__name__}(" in text, f"{file}: {function.name}"
