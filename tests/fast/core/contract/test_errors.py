from urllib.parse import quote

import pytest

from neocloud.core import contract
from neocloud.core.contract import ApiError, Code
from neocloud.core.kind import Violation

ServiceError = contract.message("nebius.common.v1.ServiceError")


@pytest.mark.parametrize(
    ("error", "code", "detail"),
    [
        (contract.bad_field("spec.count", "must be 1"), Code.INVALID_ARGUMENT, "bad_request"),
        (contract.not_found("cluster", "x"), Code.NOT_FOUND, "resource_not_found"),
        (contract.already_exists("cluster", "x"), Code.ALREADY_EXISTS, "resource_already_exists"),
        (contract.bad_state("x", "busy"), Code.FAILED_PRECONDITION, "bad_resource_state"),
        (contract.conflict("x", "stale"), Code.ABORTED, "resource_conflict"),
        (contract.operation_conflict("o", "x", "wait"), Code.FAILED_PRECONDITION, "operation_conflict"),
        (contract.operation_aborted("o", "p", "x", "replaced"), Code.ABORTED, "operation_aborted"),
        (contract.quota_failure([("q", "1", "2", "too many")]), Code.RESOURCE_EXHAUSTED, "quota_failure"),
        (contract.not_enough_resources("gpu", "8", "none"), Code.RESOURCE_EXHAUSTED, "not_enough_resources"),
        (contract.too_many_requests("slow down"), Code.RESOURCE_EXHAUSTED, "too_many_requests"),
        (contract.permission_denied("a.b", "x"), Code.PERMISSION_DENIED, "permission_denied"),
        (contract.internal("r1"), Code.INTERNAL, "internal_error"),
    ],
)
def test_each_error_has_its_code_and_its_detail(error: ApiError, code: Code, detail: str) -> None:
    status = error.status("neocloud.slurm.v1.ClusterService")
    assert (error.code, status.code, status.message) == (code, code, error.message)
    service_error = contract.unpack(status.details[0])
    assert service_error.WhichOneof("details") == detail
    assert service_error.service == "neocloud.slurm.v1.ClusterService"


@pytest.mark.parametrize(
    "error",
    [
        contract.quota_failure([("q", "1", "2", "too many")]),
        contract.not_enough_resources("gpu", "8", "none"),
    ],
)
def test_quota_and_capacity_errors_forbid_a_retry(error: ApiError) -> None:
    """Clients retry RESOURCE_EXHAUSTED for minutes unless the error tells them not to."""
    assert error.details[0].retry_type == ServiceError.RetryType.Value("NOTHING")


def test_violations_and_pairs_are_told_alike() -> None:
    one = contract.bad_request([Violation("spec.a", "must be set")])
    other = contract.bad_request([("spec.a", "must be set")])
    assert one.status() == other.status()
    assert "spec.a must be set" in one.message


def test_an_error_survives_the_wire() -> None:
    sent = contract.already_exists("cluster", "bank", "slurmcluster-e00x")
    received = contract.from_status(sent.status("svc").SerializeToString())
    assert (received.code, received.message) == (sent.code, sent.message)
    assert received.details[0].resource_already_exists.resource_id == "slurmcluster-e00x"


def test_messages_say_what_to_do_next() -> None:
    assert "Choose another name" in contract.already_exists("cluster", "bank").message
    assert "Check the id" in contract.not_found("cluster", "x").message


def test_many_violations_fit_into_the_trailers_of_an_answer() -> None:
    """Clients refuse trailers of more than 8 KiB, and would report that instead of the violations."""
    deep = [(f"spec.node_sets[{number}].name", "é" * 1000) for number in range(500)]
    error = contract.bad_request([*deep, ("spec.node_sets", "must have at most 16 items")])
    length = len(quote(error.message, safe=" ;")) + len(error.status("slurm").SerializeToString())
    assert length < 8192 - 512
    told = error.details[0].bad_request.violations
    assert told[0].field == "spec.node_sets"
    assert told[-1].message.startswith("and ") and told[-1].message.endswith(" more")
