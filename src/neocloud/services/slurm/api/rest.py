"""Slurm's own REST API for callers from outside: what is listed here is sent on to the cluster's slurmrestd.

The caller's permission was checked before. slurmrestd gets a token of the control plane's own for the root
user of the cluster, as `JobService.Submit` runs sbatch as root; no header of the caller reaches it. A path
that is not listed is refused: Slurm's API can also stop the controller, change accounts and delete nodes.
"""

import json
import re

from neocloud.core import contract
from neocloud.core.service import Call, HttpRoute, Method
from neocloud.messages.neocloud.slurm.v1 import RestRequest, RestResponse, RestSubmitRequest
from neocloud.services.slurm.access import SlurmAccess, api_errors
from neocloud.services.slurm.slurmrestd import API_VERSION, ForwardedTooLarge

MAX_REST_ANSWER_BYTES = 16 * 1024 * 1024
"""Most bytes of an answer of slurmrestd that is passed on: some thousands of jobs."""
MAX_REST_REQUEST_BYTES = 5 * 1024 * 1024
"""Bytes that a Submit may hold beyond other requests, as that of JobService."""

_SLURM, _ACCOUNTING = f"slurm/{API_VERSION}", f"slurmdb/{API_VERSION}"
_JOB = r"[0-9]{1,10}(?:[_+][0-9]{1,10})?"
_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
READABLE = re.compile(
    rf"{re.escape(_SLURM)}/(?:(?:ping|diag|jobs|nodes|partitions|reservations|licenses|shares)/"
    rf"|job/{_JOB}|(?:node|partition|reservation)/{_NAME})"
    rf"|{re.escape(_ACCOUNTING)}/(?:jobs/|job/{_JOB})",
    re.ASCII,
)
SUBMITTABLE = re.compile(rf"{re.escape(_SLURM)}/job/submit", re.ASCII)
CANCELLABLE = re.compile(rf"{re.escape(_SLURM)}/job/{_JOB}", re.ASCII)
_QUERY = re.compile(r"[A-Za-z0-9_.,:+%&=-]*", re.ASCII)


async def read(call: Call, request: RestRequest) -> RestResponse:
    return await _forward(call, "GET", READABLE, request)


async def submit(call: Call, request: RestSubmitRequest) -> RestResponse:
    try:
        job = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise contract.bad_field("body", "is not JSON") from error
    if not isinstance(job, dict):
        raise contract.bad_field("body", "is not a JSON object")
    return await _forward(call, "POST", SUBMITTABLE, request, request.body)


async def cancel(call: Call, request: RestRequest) -> RestResponse:
    return await _forward(call, "DELETE", CANCELLABLE, request)


async def _forward(
    call: Call,
    verb: str,
    allowed: re.Pattern[str],
    request: RestRequest | RestSubmitRequest,
    body: bytes = b"",
) -> RestResponse:
    if not allowed.fullmatch(request.path):
        text = (
            f'"{verb} {request.path}" is not among the calls of Slurm that are served; see the guide to Slurm'
        )
        raise contract.bad_field("path", text)
    if not _QUERY.fullmatch(request.query):
        raise contract.bad_field("query", "has characters that a query of Slurm does not need")
    access = SlurmAccess.of(call.dependencies)
    with api_errors(request.cluster_id):
        async with access.ready_api(request.cluster_id) as slurm:
            try:
                status, answer = await slurm.forward(
                    verb, request.path, request.query, body, MAX_REST_ANSWER_BYTES
                )
            except ForwardedTooLarge as error:
                text = f"Slurm's answer is longer than {MAX_REST_ANSWER_BYTES} bytes. Request single jobs."
                raise contract.bad_state(request.cluster_id, text) from error
    return RestResponse(status=status, body=answer)


_REST = "neocloud.slurm.v1.RestService"


def _cluster_id(request: RestRequest | RestSubmitRequest) -> str:
    return request.cluster_id


METHODS = (
    Method(f"{_REST}/Read", read, "slurm.jobs.list", _cluster_id),
    Method(
        f"{_REST}/Submit",
        submit,
        "slurm.jobs.create",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        larger_request_bytes=MAX_REST_REQUEST_BYTES,
    ),
    Method(
        f"{_REST}/Cancel",
        cancel,
        "slurm.jobs.cancel",
        _cluster_id,
        is_change=True,
        has_outside_effects=True,
        is_ending=True,
    ),
)

ROUTES = (
    HttpRoute(
        "/clusters/{cluster_id}/{path:path}",
        {"GET": f"{_REST}/Read", "POST": f"{_REST}/Submit", "DELETE": f"{_REST}/Cancel"},
        token_header="x-slurm-user-token",
    ),
)
"""Clients of Slurm take `https://CLOUD/clusters/ID` as the address of slurmrestd, and send a token of the
cloud where they send Slurm's own."""
