"""A model served as a job of a Slurm cluster, beside training (AIS-01): real Slurm, real vLLM."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from neocloud.testing.waiting import wait_until
from tests.e2e.cloud import Cloud
from tests.e2e.cluster import Cluster
from tests.e2e.inference.adapter import write_adapter
from tests.e2e.inference.served import Served, chat

NAME, WORKER = "on-slurm", "worker-1"


@pytest.fixture(scope="module")
def deployment(cloud: Cloud, bank: Cluster, model: Path) -> Iterator[Served]:
    """READY on the cluster; at the end nothing of it is left there."""
    bank.wait_until_idle()
    cloud.neo("model", "add", NAME, str(model))
    served = Served(cloud, NAME, model)
    registered = served.call("ModelService/GetByName", {"parent_id": cloud.project_id, "name": NAME})
    spec = {
        "model_id": registered.metadata.id,
        "slurm_cluster_id": bank.id,
        "slurm_resources": {"cpus": 2, "memory_gibibytes": 4, "worker": WORKER},
        "scaling": {"min_replicas": 1},
        "max_adapters": 1,
    }
    metadata = {"parent_id": cloud.project_id, "name": NAME}
    served.call("DeploymentService/Create", {"metadata": metadata, "spec": spec})
    wait_until(lambda: served.deployment.status.replicas, "there is a replica")
    served.wait_until_ready()
    yield served
    cloud.neo("model", "delete", NAME)
    bank.wait_until_idle()


def jobs(bank: Cluster) -> list[str]:
    return bank.ssh("squeue --noheader --format=%A").split()


def test_it_answers_by_the_gateway_from_a_node_of_the_cluster(deployment: Served, bank: Cluster) -> None:
    replica = deployment.replica
    assert jobs(bank) == [str(replica.job_id)]
    nodes = {node["name"]: node["address"] for node in bank.record["status"]["nodes"]}
    assert replica.address.rpartition(":")[0] == nodes[WORKER]
    status, answer = chat(deployment.gateway, NAME, deployment.token())
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] > 0
    assert chat(f"http://{replica.address}/v1", NAME, "wrong")[0] == 401
    assert (
        httpx.post(f"http://{replica.address}/tokenize", json={"prompt": "hello"}, timeout=60).status_code
        == 401
    )


def test_jobs_see_the_weights_and_cannot_change_them(deployment: Served, bank: Cluster) -> None:
    folder = f"/opt/neocloud/models/{deployment.deployment.metadata.id}/model"
    command = f"bash -c 'ls {folder}; touch {folder}/x' 2>&1 || true"
    said = bank.ssh(f"srun --overlap --jobid {deployment.replica.job_id} {command}")
    assert "config.json" in said and "Read-only file system" in said


def test_an_adapter_is_loaded_into_the_job(deployment: Served, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "slurm-adapter", deployment.model)
    deployment.cloud.neo("model", "add", "slurm-adapter", str(folder), "--base", NAME)
    deployment.wait_for_adapters("slurm-adapter")
    assert chat(deployment.gateway, "slurm-adapter", deployment.token())[0] == 200
    deployment.cloud.neo("model", "delete", "slurm-adapter")
    deployment.wait_for_adapters()


LISTENER = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor

def serve(port):
    with socket.create_server(("", port)) as server:
        while True:
            connection, _ = server.accept()
            with connection, open(sys.argv[1], "ab", buffering=0) as log:
                log.write(connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")

with ThreadPoolExecutor() as pool:
    list(pool.map(serve, map(int, sys.argv[2:])))
"""


def test_a_user_with_the_replicas_name_does_not_become_the_replica(
    deployment: Served, bank: Cluster, local_user: str
) -> None:
    """H1: her job has name and comment of root's, a higher number, and a listener at the same port."""
    replica, home = deployment.replica, f"/home/{local_user}"
    bank.ssh(f"cat > {home}/listen.py", stdin=LISTENER)
    port = replica.address.rpartition(":")[2]
    real = bank.ssh(f"squeue --noheader --jobs={replica.job_id} --format='%j %k %N'").split()
    assert len(real) == 3 and real[1].startswith("neocloud:")
    forged = bank.ssh(
        f"cd {home} && su {local_user} -c 'sbatch --parsable --job-name={real[0]} --comment={real[1]}"
        f' --exclude={real[2]} --output={home}/out --wrap "python3 listen.py {home}/seen {port}"\''
    )
    try:
        wait_until(lambda: bank.job_state(forged) == "RUNNING", "the forged job runs")
        node = bank.ssh(f"squeue --noheader --jobs={forged} --format=%N")
        address = next(each["address"] for each in bank.record["status"]["nodes"] if each["name"] == node)
        wait_until(lambda: _answers(address, port), "its program listens")
        for _ in range(3):
            assert chat(deployment.gateway, NAME, deployment.token())[0] == 200
        assert (deployment.replica.job_id, deployment.replica.address) == (replica.job_id, replica.address)
        log = deployment.call("DeploymentService/ReadLog", {"id": deployment.deployment.metadata.id}).text
        assert "vllm" in log.lower()
        seen = bank.ssh(f"cat {home}/seen")
        assert "Bearer" not in seen and "completions" not in seen
    finally:
        bank.ssh(f"scancel {forged}")
        wait_until(lambda: forged not in jobs(bank), "the forged job is gone")


def _answers(address: str, port: str) -> bool:
    try:
        return httpx.get(f"http://{address}:{port}/", timeout=5).is_success
    except httpx.HTTPError:
        return False


def test_its_log_is_read_from_the_shared_root(deployment: Served) -> None:
    request = {"id": deployment.deployment.metadata.id, "lines": 1000}
    assert "vllm" in deployment.call("DeploymentService/ReadLog", request).text.lower()


def test_a_job_that_is_cancelled_comes_back_as_another_and_goes_with_its_deployment(
    deployment: Served, bank: Cluster
) -> None:
    before, deployment_id = deployment.replica.job_id, deployment.deployment.metadata.id
    bank.ssh(f"scancel {before}")
    wait_until(lambda: deployment.replica.job_id not in (0, before), "another job takes its place")
    deployment.call("DeploymentService/Delete", {"id": deployment_id})
    wait_until(lambda: not jobs(bank), "its job is gone", seconds=180)
    shown = deployment.cloud.home / "models" / bank.id / deployment_id
    wait_until(lambda: not shown.exists(), "its weights are gone from the cluster")
