"""Nodes of a cluster reach object storage and the registry of their cloud, and nothing else of its host."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.cloud import Cloud
from tests.e2e.cluster import SHARED, Cluster
from tests.e2e.test_machines import Machine
from tests.fast.container_images import busybox_layer, write_layout

NAME = "storage.eu-north1.neocloud.internal"
LIBRARIES = ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3")
DRIVE = """
import boto3, sys
s3 = boto3.client("s3", endpoint_url=f"https://{sys.argv[1]}", region_name="eu-north1")
s3.put_object(Bucket="from-nodes", Key="hello", Body=b"from a node")
print([each["Key"] for each in s3.list_objects_v2(Bucket="from-nodes")["Contents"]])
print(s3.get_object(Bucket="from-nodes", Key="hello")["Body"].read().decode())
"""


@dataclass(frozen=True)
class Key:
    id: str
    secret: str


@pytest.fixture(scope="module")
def key(bank: Cluster) -> Iterator[Key]:
    """The access key of an account that may read and write; root of the cluster has it in its home."""
    neo, neo_json = bank.cloud.neo, bank.cloud.neo_json
    neo("storage", "bucket", "create", "from-nodes")
    neo("iam", "service-account", "create", "nodes")
    neo("iam", "group-membership", "create", "--parent-id", "editors", "--member-id", "nodes")
    made = neo_json(
        *("iam", "access-key", "create", "--account-service-account-id", "nodes"),
        *("--secret-delivery-mode", "EXPLICIT"),
    )
    secret = neo_json("iam", "access-key", "get-secret", made["metadata"]["id"])
    key = Key(secret["aws_access_key_id"], secret["secret"])
    text = f"[default]\naws_access_key_id = {key.id}\naws_secret_access_key = {key.secret}\n"
    bank.ssh("mkdir -p ~/.aws && umask 077 && cat >~/.aws/credentials", stdin=text)
    yield key
    bank.ssh("rm -rf ~/.aws")
    neo(
        "storage", "rm", "s3://from-nodes/", "--recursive", "--yes", code=None
    )  # a test that failed left none
    neo("storage", "bucket", "delete", "from-nodes", "--yes")


@pytest.fixture(scope="module")
def libraries(bank: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder of the cluster with boto3 in it."""
    archive = tmp_path_factory.mktemp("libraries") / "libraries.tar"
    with tarfile.open(archive, "w") as packed:
        for name in LIBRARIES:
            found = find_spec(name)
            assert found and found.origin
            packed.add(Path(found.origin).parent, name)
        six = find_spec("six")
        assert six and six.origin
        packed.add(six.origin, "six.py")
    bank.copy_in(archive, f"{SHARED}/libraries.tar")
    bank.ssh(f"mkdir -p {SHARED}/libraries && tar -C {SHARED}/libraries -xf {SHARED}/libraries.tar")
    return f"{SHARED}/libraries"


def test_a_job_uses_object_storage_by_name(bank: Cluster, key: Key, libraries: str) -> None:
    """The node trusts it: no client gets an authority as an option."""
    bank.ssh(f"cat >{SHARED}/drive.py", stdin=DRIVE)
    said = bank.run_job(f"PYTHONPATH={libraries} python3 {SHARED}/drive.py {NAME}", "--nodelist=worker-1")
    assert said.splitlines() == ["['hello']", "from a node"]
    listed = bank.cloud.neo("storage", "ls", "s3://from-nodes/").stdout
    assert "hello" in listed


def test_a_node_reaches_nothing_else_of_the_host(bank: Cluster, key: Key) -> None:
    server = bank.cloud.server
    record = json.loads((bank.cloud.home / "objects" / "process.json").read_text())
    details = bank.cloud.neo_json("status")["engine"]["details"]
    assert details["storage for workloads"].startswith(f"{NAME}:443 (")
    address = details["storage for workloads"].partition("(")[2].rstrip(")")
    plain = [str(server[each]).rpartition(":")[2] for each in ("grpc", "http", "s3")]
    ports = [*plain, str(record["workload_port"]), "22"]
    places = [f"{address}:{port}" for port in ports] + [f"_gateway:{port}" for port in (*ports, "443")]
    script = f"""
for place in {" ".join(places)}; do
    curl -s --insecure --max-time 1 -o /dev/null https://$place && echo $place answers
    timeout 1 bash -c "</dev/tcp/${{place%:*}}/${{place#*:}}" 2>/dev/null && echo $place is open
done
curl --silent --show-error --output /dev/null --write-out '%{{http_code}}' https://{NAME}/
"""
    assert bank.run_job(script, "--nodelist=worker-0").strip() == "403"


def test_a_job_runs_an_image_of_the_registry_of_its_cloud(bank: Cluster, key: Key, tmp_path: Path) -> None:
    registry = bank.cloud.neo_json("registry", "registry", "create", "nodes")
    where = registry["metadata"]["id"].partition("-")[2]
    write_layout(tmp_path / "image", [busybox_layer({"etc/word": "hello"})], {})
    bank.copy_in(tmp_path / "image", f"{SHARED}/image")
    bank.ssh("mkdir -p ~/.docker")
    sign_in = f"skopeo login --authfile ~/.docker/config.json --username {key.id} --password-stdin {NAME}"
    bank.ssh(sign_in, stdin=key.secret)
    try:
        bank.ssh(f"skopeo copy oci:{SHARED}/image docker://{NAME}/{where}/word:1")
        said = bank.run_job(
            f"srun --container-image=docker://{NAME}#{where}/word:1 cat /etc/word", "--nodelist=worker-1"
        )
        assert "hello" in said
    finally:
        bank.ssh(f"rm -rf ~/.docker {SHARED}/image")
        bank.cloud.call(
            "nebius.registry.v1.RegistryService/Delete", {"id": registry["metadata"]["id"], "force": True}
        )


def test_a_machine_reaches_it_by_name_and_nothing_else(cloud: Cloud) -> None:
    machine = Machine.create(cloud, "store")
    try:
        knock = (
            "for port in 443 22 80; do nc -w 3 {} $port </dev/null >/dev/null 2>&1 && echo $port; done; true"
        )
        assert machine.run(knock.format(NAME)) == "443"
    finally:
        machine.delete()
