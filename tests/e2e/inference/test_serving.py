"""A model served by a real vLLM in a pod (AIS-01): its key, adapters, a killed engine, its
log."""

from pathlib import Path

import httpx
import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.inference.adapter import write_adapter
from tests.e2e.inference.served import Served, chat


def test_it_answers_who_has_its_key_and_nobody_else(served: Served) -> None:
    url, key = f"http://{served.replica.address}/v1", served.engine_key()
    status, answer = chat(url, "tiny", key)
    assert status == 200 and answer["usage"]["completion_tokens"] > 0
    assert chat(url, "tiny")[0] == 401
    assert chat(url, "tiny", "wrong")[0] == 401


def test_its_other_paths_need_the_key_too(served: Served) -> None:
    headers = {"Authorization": f"Bearer {served.engine_key()}"}
    with httpx.Client(base_url=f"http://{served.replica.address}", trust_env=False, timeout=60) as client:
        assert client.get("/health").status_code == 200
        for path in ("/metrics", "/version", "/openapi.json"):
            assert client.get(path).status_code == 401, path
            assert client.get(path, headers=headers).status_code == 200, path
        asked = {"model": "tiny", "prompt": "hello"}
        assert client.post("/tokenize", json=asked).status_code == 401
        assert client.post("/tokenize", json=asked, headers=headers).status_code == 200


def test_clients_call_it_by_the_gateway(served: Served) -> None:
    status, answer = chat(served.gateway, "tiny", served.token())
    assert status == 200, answer
    assert answer["model"] == "tiny" and answer["choices"][0]["message"]["role"] == "assistant"


def test_what_it_needs_of_memory_is_shown(served: Served) -> None:
    status = served.deployment.status
    assert "of 4 GiB of memory" in status.memory and status.context_length == 2048
    assert status.start_seconds > 0


def test_an_adapter_comes_and_goes_without_a_restart(served: Served, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "support", served.model)
    began = served.replica.started_at
    served.cloud.neo("model", "add", "support", str(folder), "--base", "tiny")
    served.wait_for_adapters("support")
    url, key = f"http://{served.replica.address}/v1", served.engine_key()
    assert chat(url, "support", key)[0] == 200
    served.cloud.neo("model", "delete", "support")
    served.wait_for_adapters()
    assert chat(url, "support", key)[0] == 404
    assert served.replica.started_at == began


def test_its_log_is_read_with_neo(served: Served) -> None:
    said = served.cloud.neo("deployment", "logs", "tiny", "--lines", "500").stdout
    assert "Application startup complete" in said


def test_it_can_write_neither_to_its_model_nor_to_the_shared_root(served: Served, images: Path) -> None:
    touch = "touch /model/mark 2>&1; touch /usr/mark 2>&1; true"
    said = served.cloud.podman("exec", served.podman_name(), "sh", "-c", touch)
    assert "'/model/mark': Read-only file system" in said
    root = images / "jail" / "rootfs"
    assert not (root / "usr" / "mark").exists() and not (root / "root" / ".cache" / "vllm").exists()


@pytest.mark.long
def test_an_engine_that_is_killed_comes_back_with_its_adapters(served: Served, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "cards", served.model)
    served.cloud.neo("model", "add", "cards", str(folder), "--base", "tiny")
    served.wait_for_adapters("cards")
    before = served.replica.restarts
    served.cloud.podman("kill", "--signal", "KILL", served.podman_name())
    wait_until(lambda: served.replica.restarts > before, "its end was noticed", seconds=60)
    served.wait_until_ready(restarts=before + 1)
    served.wait_for_adapters("cards")
    assert chat(f"http://{served.replica.address}/v1", "cards", served.engine_key())[0] == 200
    served.cloud.neo("model", "delete", "cards")
    served.wait_for_adapters()
