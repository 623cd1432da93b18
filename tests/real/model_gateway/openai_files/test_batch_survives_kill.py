"""A batch in a gateway that is killed (-9) in the middle continues when another starts (AIS-01)."""

import json
from pathlib import Path
from typing import Any

import httpx

from neocloud.testing.gateway import engine_process, gateway_process, route
from neocloud.testing.mock_engine import Behaviour
from neocloud.testing.waiting import wait_until

LINES = 400


def test_killed_in_the_middle(tmp_path: Path) -> None:
    with (
        engine_process(Behaviour(tokens=1, token_seconds=0.05)) as engine,
        gateway_process(tmp_path) as gateway,
        httpx.Client(base_url=f"{gateway.url}/v1/", headers=gateway.headers, timeout=60) as http,
    ):
        gateway.set_routes(route("bank", replicas=[engine.address]))
        batch = _make(http)
        results = tmp_path / "gateway" / "batches" / batch["id"] / "results"
        wait_until(lambda: results.exists() and results.read_bytes().count(b"\n") >= 100)
        gateway.process.kill()
        gateway.process.wait()
        written = results.read_bytes().count(b"\n")
        asked_before = engine.counts()["requests"]
        assert 100 <= written < LINES

        gateway.start()
        done = _finished(http, batch["id"])
        assert done["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
        assert engine.counts()["requests"] - asked_before == LINES - written
        text = http.get(f"files/{done['output_file_id']}/content").text
        ids = [json.loads(line)["custom_id"] for line in text.splitlines()]
        assert sorted(ids) == sorted(f"c-{number}" for number in range(LINES))


def _make(http: httpx.Client) -> dict[str, Any]:
    body = {"model": "bank", "messages": [{"role": "user", "content": "one two"}]}
    endpoint = "/v1/chat/completions"
    lines = [{"custom_id": f"c-{n}", "method": "POST", "url": endpoint, "body": body} for n in range(LINES)]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = http.post("files", data={"purpose": "batch"}, files={"file": ("r.jsonl", content)}).json()
    asked = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
    return http.post("batches", json=asked).json()


def _finished(http: httpx.Client, batch_id: str) -> dict[str, Any]:
    def look() -> dict[str, Any]:
        batch = http.get(f"batches/{batch_id}").json()
        assert batch["status"] in ("in_progress", "finalizing", "completed")
        return batch

    return wait_until(look, "the batch is completed", holds=lambda batch: batch["status"] == "completed")
