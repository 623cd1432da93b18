"""A client of Slurm's REST service.

slurmrestd listens on the cluster's network only and trusts HS256 tokens signed with the cluster's JWT
key. Its answers carry errors in the payload, sometimes under status 200. The client does not retry: the
reconcile loop does.
"""

import logging
import ssl
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import httpx
import jwt

from neocloud.services.slurm.public import Reservation
from neocloud.services.slurm.slurm_records import (
    Json,
    SlurmJob,
    SlurmNode,
    finished_job_of,
    job_of,
    node_of,
    part_of,
    reservation_of,
    rows_of,
)

logger = logging.getLogger(__name__)

API_VERSION = "v0.0.42"
PORT = 6820
TOKEN_SECONDS = 300
START_SECONDS = 2
"""How far ahead a requeued job's begin time is set. slurmd compares whole seconds: it ends a job finally
whose credential was made in the second in which it was asked to end the earlier run, or before."""
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""

_UNKNOWN_JOB_ERRORS = {2017, 9003}
"""ESLURM_INVALID_JOB_ID and slurmdbd's "nothing found"."""


STATISTICS = (
    *("jobs_pending", "jobs_running", "jobs_submitted", "jobs_started", "jobs_completed", "jobs_canceled"),
    *("jobs_failed", "schedule_queue_length", "schedule_cycle_last", "server_thread_count"),
)
"""Names of slurmctld's own counters (sdiag) that are read."""


class SlurmError(Exception):
    """Slurm refused; the message is Slurm's own."""


class SlurmUnreachable(SlurmError):
    """slurmrestd or slurmctld does not answer (yet)."""


class ForwardedTooLarge(SlurmError):
    """The answer to a forwarded call is longer than the caller of it takes."""


class SlurmApi(Protocol):
    """The calls to a running Slurm; `SlurmRest` is the real one."""

    async def version(self) -> str: ...

    async def nodes(self) -> Sequence[SlurmNode]: ...

    async def set_node_state(self, name: str, state: str, reason: str) -> None: ...

    async def delete_node(self, name: str) -> None: ...

    async def jobs(self) -> Sequence[SlurmJob]:
        """Return the jobs in the controller's memory: all that wait or run, and those that ended recently."""
        ...

    async def job(self, job_id: int) -> SlurmJob | None:
        """Return a job in the controller's memory, whatever their number."""
        ...

    async def finished_job(self, job_id: int) -> SlurmJob | None:
        """Return a job from the accounting database."""
        ...

    async def finished_jobs(self) -> Sequence[SlurmJob]: ...

    async def accounting_rows(self, job_id: int) -> Sequence[Json]:
        """Return the accounting database's records of a job, one for each run, as slurmrestd has them."""
        ...

    async def reservations(self) -> Sequence[Reservation]: ...

    async def cancel_job(self, job_id: int) -> None: ...

    async def start_job_in(self, job_id: int, seconds: int) -> None:
        """Set a pending job's begin time to so many seconds from now, and `START_SECONDS`."""
        ...

    async def hold_job(self, job_id: int, why: str) -> None:
        """Keep a pending job from starting until an administrator releases it; `why` is its admin comment."""
        ...

    async def statistics(self) -> Mapping[str, int]:
        """Return what slurmctld counts itself, by the names of `STATISTICS`: nothing is listed for it."""
        ...

    async def messages_under_way(self) -> int:
        """Return how many messages slurmctld has yet to deliver to its nodes, such as the end of a job."""
        ...

    async def reconfigure(self) -> None:
        """Make all daemons read the configuration again; jobs continue."""
        ...

    async def forward(
        self, verb: str, path: str, query: str, body: bytes, max_bytes: int
    ) -> tuple[int, bytes]:
        """Send a call of somebody else on, and return slurmrestd's status and JSON as they are.

        Raises ForwardedTooLarge for an answer of more than `max_bytes`."""
        ...

    async def close(self) -> None: ...


class SlurmRest:
    """SlurmApi over HTTP."""

    def __init__(self, address: str, key: bytes, *, timeout_seconds: float = 5.0) -> None:
        self._key = key
        self._client = httpx.AsyncClient(
            base_url=f"http://{address}:{PORT}",
            timeout=timeout_seconds,
            trust_env=False,
            verify=_NO_TLS,
        )

    async def version(self) -> str:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/ping/")
        if not any(ping.get("pinged") == "UP" for ping in rows_of(answer, "pings")):
            raise SlurmUnreachable("slurmctld does not answer its REST service yet")
        slurm = answer["meta"]["slurm"]
        return slurm["release"]

    async def nodes(self) -> Sequence[SlurmNode]:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/nodes/")
        return [node_of(row) for row in rows_of(answer, "nodes")]

    async def set_node_state(self, name: str, state: str, reason: str) -> None:
        await self._call("POST", f"/slurm/{API_VERSION}/node/{name}", {"state": [state], "reason": reason})
        logger.info("Slurm: node %s: %s%s", name, state, f", {reason}" if reason else "")

    async def delete_node(self, name: str) -> None:
        await self._call("DELETE", f"/slurm/{API_VERSION}/node/{name}")
        logger.info("Slurm: node %s: deleted", name)

    async def jobs(self) -> Sequence[SlurmJob]:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/jobs/")
        return [job_of(row) for row in rows_of(answer, "jobs")]

    async def job(self, job_id: int) -> SlurmJob | None:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/job/{job_id}", tolerate=_UNKNOWN_JOB_ERRORS)
        rows = rows_of(answer, "jobs")  # all tasks of an array, if it is of one
        return next((job_of(row) for row in rows if row["job_id"] == job_id), None)

    async def finished_job(self, job_id: int) -> SlurmJob | None:
        rows = await self.accounting_rows(job_id)
        return finished_job_of(rows[-1]) if rows else None

    async def finished_jobs(self) -> Sequence[SlurmJob]:
        answer = await self._call("GET", f"/slurmdb/{API_VERSION}/jobs/", tolerate=_UNKNOWN_JOB_ERRORS)
        return [finished_job_of(row) for row in rows_of(answer, "jobs")]

    async def accounting_rows(self, job_id: int) -> Sequence[Json]:
        path = f"/slurmdb/{API_VERSION}/job/{job_id}"
        return rows_of(await self._call("GET", path, tolerate=_UNKNOWN_JOB_ERRORS), "jobs")

    async def reservations(self) -> Sequence[Reservation]:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/reservations/")
        return [reservation_of(row) for row in rows_of(answer, "reservations")]

    async def cancel_job(self, job_id: int) -> None:
        await self._call("DELETE", f"/slurm/{API_VERSION}/job/{job_id}")
        logger.info("Slurm: job %d: cancelled", job_id)

    async def start_job_in(self, job_id: int, seconds: int) -> None:
        begin = {"set": True, "infinite": False, "number": int(time.time()) + START_SECONDS + seconds}
        await self._call("POST", f"/slurm/{API_VERSION}/job/{job_id}", {"begin_time": begin})
        logger.info("Slurm: job %d: requeued, may start in %d s", job_id, seconds)

    async def hold_job(self, job_id: int, why: str) -> None:
        path = f"/slurm/{API_VERSION}/job/{job_id}"
        await self._call("POST", path, {"hold": True, "admin_comment": why})
        logger.info("Slurm: job %d: held, %s", job_id, why)

    async def statistics(self) -> Mapping[str, int]:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/diag/")
        found = part_of(answer, "statistics")
        return {name: int(found.get(name) or 0) for name in STATISTICS}

    async def messages_under_way(self) -> int:
        answer = await self._call("GET", f"/slurm/{API_VERSION}/diag/")
        statistics = part_of(answer, "statistics")
        return sum(int(statistics.get(name) or 0) for name in ("agent_queue_size", "agent_count"))

    async def reconfigure(self) -> None:
        await self._call("GET", f"/slurm/{API_VERSION}/reconfigure/")
        logger.info("Slurm: the configuration is read again")

    async def forward(
        self, verb: str, path: str, query: str, body: bytes, max_bytes: int
    ) -> tuple[int, bytes]:
        url = f"/{path}?{query}" if query else f"/{path}"
        headers = {**self._headers(), **({"content-type": "application/json"} if body else {})}
        chunks: list[bytes] = []
        size = 0
        try:
            async with self._client.stream(verb, url, content=body, headers=headers) as response:
                async for chunk in response.aiter_bytes():
                    chunks.append(chunk)
                    size += len(chunk)
                    if size > max_bytes:
                        raise ForwardedTooLarge(f"the answer is longer than {max_bytes} bytes")
        except httpx.TransportError as error:
            raise SlurmUnreachable(f"slurmrestd does not answer: {error or type(error).__name__}") from error
        if response.status_code == 401:
            raise SlurmError("slurmrestd refused the cluster's token")
        return response.status_code, b"".join(chunks)

    async def close(self) -> None:
        await self._client.aclose()

    async def _call(
        self,
        verb: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        tolerate: set[int] | None = None,
    ) -> Json:
        try:
            response = await self._client.request(verb, path, json=body, headers=self._headers())
        except httpx.TransportError as error:
            raise SlurmUnreachable(f"slurmrestd does not answer: {error or type(error).__name__}") from error
        if response.status_code == 401:
            raise SlurmError("slurmrestd refused the cluster's token")
        try:
            answer = response.json()
        except ValueError as error:
            raise SlurmUnreachable(f"slurmrestd answered {response.status_code} without JSON") from error
        errors = rows_of(answer, "errors")
        if errors and errors[0].get("error_number") not in (tolerate or ()):
            raise _error(errors[0])
        return answer

    def _headers(self) -> dict[str, str]:
        now = int(time.time())
        claims = {"sun": "root", "iat": now, "exp": now + TOKEN_SECONDS}
        token = jwt.encode(claims, self._key, algorithm="HS256")
        return {"X-SLURM-USER-NAME": "root", "X-SLURM-USER-TOKEN": token}


def _error(row: Json) -> SlurmError:
    text = ": ".join(part for part in (row.get("error"), row.get("description")) if part)
    message = text or f"error {row.get('error_number')}"
    unreachable = "Unable to contact" in message or "Connection refused" in message
    return SlurmUnreachable(message) if unreachable else SlurmError(message)
