"""The client of VictoriaMetrics: sends a query on, limited to one project.

The limit is a filter that the store adds to every selector of the query (`extra_filters[]`), whatever the
query says. Parameters of the caller are rebuilt from a list, so none that widens or lifts a filter passes,
and no other page of the store (export, import, deletion, federation) is ever asked.
"""

import json
import math
import re
import ssl
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import httpx

from neocloud.core import contract
from neocloud.core.child_process import Child
from neocloud.core.contract import ApiError
from neocloud.core.metrics import PROJECT_LABEL
from neocloud.data_plane.metrics_keys import STORE_USER, metrics_folder, metrics_password_file
from neocloud.services.monitoring.public import MetricsStore, MetricsUnknown, Sample, StoreAddress

MAX_ANSWER_BYTES = 16 * 1024 * 1024
QUERY_SECONDS = 15.0
AT_ONCE = 4
"""Queries of one project under way; the store takes more of all together."""
MOST_PARAMETERS = 64
STORE_MISSING = (
    "This cloud keeps no history of metrics. An operator turns it on: neo image build metrics, then"
    " neo up --metrics."
)
_TIME = ("start", "end")
PARAMETERS = {
    "query": ("query", "time", "step"),
    "query_range": ("query", *_TIME, "step"),
    "series": ("match[]", *_TIME, "limit"),
    "labels": ("match[]", *_TIME, "limit"),
    "values": ("match[]", *_TIME, "limit"),
}
"""The pages that are asked, each with the parameters that are passed on."""
_VALUES = re.compile(r"label/([A-Za-z_][A-Za-z0-9_]{0,127})/values", re.ASCII)
_PROJECT = re.compile(r"[A-Za-z0-9-]{1,100}", re.ASCII)
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For plain HTTP: saves each client the 20 ms of reading the system's certificates."""

Parameters = Sequence[tuple[str, str]]


class StoreOfHome:
    """A `MetricsStore`: the process that the state folder has a record of."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def address(self) -> StoreAddress | None:
        folder = metrics_folder(self._home)
        child = Child("metrics store", folder / "unused.log", folder / "process.json")
        try:
            port = int(child.record().get("port", 0))
            password = metrics_password_file(self._home).read_text().strip()
        except (OSError, ValueError):
            return None
        if not port or child.find() is None:
            return None
        return StoreAddress(f"http://127.0.0.1:{port}", STORE_USER, password)


class MetricsHistory:
    def __init__(self, store: MetricsStore) -> None:
        self._store = store
        self._under_way: Counter[str] = Counter()

    async def read(self, path: str, query: str, body: bytes, project_id: str | None) -> tuple[int, bytes]:
        """Return the status and JSON of the store; of all projects where `project_id` is None.

        Raises ApiError.
        """
        page, kind = _page(path)
        parameters = _parameters(kind, query, body)
        if project_id is not None:
            parameters = [*parameters, ("extra_filters[]", _filter(project_id))]
        address = self._store.address()
        if address is None:
            raise contract.bad_state(project_id or "metrics", STORE_MISSING)
        with self._counted(project_id or ""):
            return await _ask(address, page, parameters)

    async def query(self, project_id: str, expression: str, at: float) -> Sequence[Sample]:
        """Implements `MetricsReader`."""
        parameters = urlencode({"query": expression, "time": f"{at:.3f}"})
        try:
            status, answer = await self.read("query", parameters, b"", project_id)
        except ApiError as error:
            raise MetricsUnknown(error.message) from error
        if status != HTTPStatus.OK:
            raise MetricsUnknown(f"The store of metrics refuses the query with status {status}.")
        try:
            found = json.loads(answer)["data"]["result"]
            samples = [Sample(each["metric"], float(each["value"][1])) for each in found]
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise MetricsUnknown("The store of metrics gives an answer that cannot be read.") from error
        return [each for each in samples if math.isfinite(each.value)]

    @contextmanager
    def _counted(self, project_id: str) -> Generator[None]:
        if self._under_way[project_id] >= AT_ONCE:
            raise contract.too_many_requests(
                f"{AT_ONCE} queries of metrics are under way. Wait until one has ended.",
                retry_after_seconds=1.0,
            )
        self._under_way[project_id] += 1
        try:
            yield
        finally:
            self._under_way[project_id] -= 1
            if not self._under_way[project_id]:
                del self._under_way[project_id]


def _filter(project_id: str) -> str:
    if not _PROJECT.fullmatch(project_id):  # an id of a resource that was found; nothing else is quoted here
        raise contract.bad_field("project_id", "is not the id of a project")
    return f'{{{PROJECT_LABEL}="{project_id}"}}'


def _page(path: str) -> tuple[str, str]:
    """Return the page of the store, and what it is in PARAMETERS."""
    if path in PARAMETERS and path != "values":
        return path, path
    if _VALUES.fullmatch(path):
        return path, "values"
    known = '"query", "query_range", "series", "labels" and "label/NAME/values"'
    raise contract.bad_field("path", f"is {path!r}; of Prometheus's API {known} are served")


def _parameters(kind: str, query: str, body: bytes) -> list[tuple[str, str]]:
    try:
        given = [
            *parse_qsl(query, max_num_fields=MOST_PARAMETERS, errors="strict"),
            *parse_qsl(body.decode(), max_num_fields=MOST_PARAMETERS, errors="strict"),
        ]
    except ValueError as error:
        raise contract.bad_field("query", "cannot be read as parameters of a URL") from error
    refused = next((name for name, _ in given if name.startswith("extra_")), None)
    if refused is not None:
        raise contract.bad_field("query", f"has {refused!r}, which only the cloud sets")
    return [(name, value) for name, value in given if name in PARAMETERS[kind]]


async def _ask(address: StoreAddress, page: str, parameters: Parameters) -> tuple[int, bytes]:
    chunks: list[bytes] = []
    size = 0
    form: dict[str, list[str]] = {}
    for name, value in parameters:
        form.setdefault(name, []).append(value)
    try:
        async with (
            httpx.AsyncClient(trust_env=False, timeout=QUERY_SECONDS, verify=_NO_TLS) as client,
            client.stream(
                "POST",
                f"{address.url}/prometheus/api/v1/{page}",
                data=form,
                auth=(address.user, address.password),
            ) as response,
        ):
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                size += len(chunk)
                if size > MAX_ANSWER_BYTES:
                    raise contract.bad_request(
                        [], f"The answer is longer than {MAX_ANSWER_BYTES} bytes. Ask for less."
                    )
    except httpx.HTTPError as error:
        raise contract.unavailable(
            f"The store of metrics does not answer ({type(error).__name__}). Try again."
        ) from error
    if response.status_code in (401, 403, 404):
        raise contract.unavailable("The store of metrics refuses this cloud. See its log: metrics.log.")
    return response.status_code, b"".join(chunks)
