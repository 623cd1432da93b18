"""Keys for object storage on the nodes of clusters: whose there are, what they open, when they end."""

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import grpc
import httpx
import pytest
from botocore.exceptions import ClientError

from neocloud.control_plane.composition import compose
from neocloud.core import contract
from neocloud.core.clock import SystemClock
from neocloud.core.readers import ServiceRegistry
from neocloud.emulator.fakes import FakeSlurm, respond_as_login_node
from neocloud.engines.base import ExecResult, Reference
from neocloud.engines.fake import FakeEngine, FakeWorld
from neocloud.services.iam.access.signed_requests import StoreSignedRequests
from neocloud.services.slurm.access import SlurmFactory
from neocloud.services.slurm.reconcile import storage_files, storage_keys
from neocloud.services.slurm.types import DELIVER_KEYS
from neocloud.testing.gateway import free_port
from neocloud.testing.waiting import until, wait_until
from tests import control_plane
from tests.fast.object_gateway.s3.served import error_of
from tests.fast.services.slurm.test_members import join, leave, make_group, name_groups
from tests.fast.services.storage.served import ServedCloud, object_gateway

pytestmark = pytest.mark.slow

ALLOW = "neocloud.slurm.v1.StorageAccessService/Allow"
WITHDRAW = "neocloud.slurm.v1.StorageAccessService/Withdraw"
PASSWORD = "correct horse battery staple"
DENIED = (403, "AccessDenied")
UNKNOWN = "InvalidAccessKeyId"


class LoginNode:
    """Answers the scripts of the login node, and has the keys that were delivered, by number."""

    def __init__(self) -> None:
        self.keys: dict[int, tuple[str, str]] = {}
        self.arguments: list[Sequence[str]] = []
        self.broken = b""

    def __call__(
        self, pod: Reference, container: str, command: Sequence[str], stdin: bytes
    ) -> ExecResult | None:
        if DELIVER_KEYS not in command:
            return respond_as_login_node(pod, container, command, stdin)
        self.arguments.append(command)
        if self.broken:
            return ExecResult(1, b"", self.broken)
        for line in stdin.decode().splitlines():
            uid, key_id, *rest = line.split()
            self.keys.pop(int(uid), None)
            if rest:
                self.keys[int(uid)] = (key_id, rest[0])
        return ExecResult(0, b"", b"")


class Cloud(ServedCloud):
    api = "neocloud.slurm.v1"
    login: LoginNode

    async def cluster(self, **spec: Any) -> Any:
        workers = {"name": "worker", "platform": "cpu-local", "preset": "1vcpu-4gb", "count": 1}
        made = await self.create("Cluster", "lab", {"node_sets": [workers], **spec})
        return await self.until(made, "READY")

    async def person(self, name: str, *groups: str) -> tuple[str, str]:
        """Return the id and a token of a new user account in these groups of the tenant."""
        email = f"{name}@bank.example"
        made = await self.call(
            "neocloud.iam.v1.UserService/Create", parent_id=self.tenant_id, email=email, password=PASSWORD
        )
        for group in groups:
            found = await self.call(
                "nebius.iam.v1.GroupService/GetByName", parent_id=self.tenant_id, name=group
            )
            await self.join(made.tenant_user_account_id, found.metadata.id)
        path = "neocloud.iam.v1.SignInService/WithPassword"
        request = contract.method(path).input(email=email, password=PASSWORD)
        session = await control_plane.call(self.channel, path, request)
        return made.tenant_user_account_id, session.access_token

    async def call_as(self, token: str, path: str, cluster_id: str) -> None:
        request = contract.method(path).input(cluster_id=cluster_id)
        await control_plane.call(self.channel, path, request, (("authorization", f"Bearer {token}"),))

    def s3_of(self, uid: int) -> Any:
        return self.s3(*self.login.keys[uid])

    async def update(self, cluster: Any, mask: str, **spec: Any) -> None:
        request = contract.from_dict(
            contract.message("neocloud.slurm.v1.UpdateClusterRequest"),
            {"metadata": {"id": cluster.metadata.id}},
        )
        request.spec.CopyFrom(cluster.spec)
        for name, value in spec.items():
            setattr(request.spec, name, value)
        await self.call("ClusterService/Update", request, headers={"x-resetmask": mask})


@pytest.fixture
async def cloud(tmp_path: Path) -> AsyncIterator[Cloud]:
    world, login = FakeWorld(), LoginNode()
    slurm = FakeSlurm(world)
    (tmp_path / "ca.pem").write_text("the authority\n")

    def composed(settings: Any, engine: Any) -> Any:
        known = replace(settings, storage_authority_file=tmp_path / "ca.pem")
        return compose(known, engine, SystemClock(), ServiceRegistry().add(SlurmFactory, slurm.connect))

    async with (
        control_plane.cloud_in_process(
            tmp_path,
            FakeEngine(world, responder=login),
            images={"slurm": {"name": "slurm"}},
            composed=composed,
        ) as plain,
        object_gateway(tmp_path, plain.running.server.addresses.grpc) as url,
    ):
        found = Cloud(**vars(plain))
        found.login, found.s3_url = login, url
        yield found


async def refused(asked: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    return caught.value.code().name


async def with_people(cloud: Cloud, *people: str) -> tuple[Any, str, list[str]]:
    """Return a new cluster whose users these are by a group, the group, and their memberships."""
    group = await make_group(cloud)  # pyright: ignore[reportArgumentType]
    memberships = [await join(cloud, group, each) for each in people]  # pyright: ignore[reportArgumentType]
    cluster = await cloud.cluster()
    await name_groups(cloud, cluster, group)  # pyright: ignore[reportArgumentType]
    cluster = await cloud.when(
        cluster.metadata.id, lambda seen: sum(bool(user.uid) for user in seen.status.users) == len(people)
    )
    return cluster, group, memberships


async def until_keys(cloud: Cloud, cluster: Any, *uids: int) -> Any:
    return await cloud.when(
        cluster.metadata.id, lambda seen: [key.uid for key in seen.status.storage_keys] == sorted(uids)
    )


async def test_a_person_who_allows_it_acts_as_itself_in_the_project_and_nowhere_else(cloud: Cloud) -> None:
    """And is asked: nobody else's key is there, not even the one of who administers the tenant."""
    ann, token = await cloud.person("ann", "editors")
    bob, _ = await cloud.person("bob", "admins")
    cluster, _, _ = await with_people(cloud, ann, bob)
    assert not cloud.login.keys
    await cloud.call_as(token, ALLOW, cluster.metadata.id)
    cluster = await until_keys(cloud, cluster, 5000)
    (status,) = cluster.status.storage_keys
    assert (status.user, status.account_id) == ("ann", ann)
    remaining = contract.to_datetime(status.expires_at) - datetime.now(UTC)
    assert timedelta(hours=1) < remaining <= storage_keys.LIFETIME
    await cloud.bucket("sets")
    other = await cloud.call(
        "nebius.iam.v1.ProjectService/Create", metadata={"parent_id": cloud.tenant_id, "name": "other"}
    )
    await cloud.bucket("elsewhere", other.resource_id)
    s3 = cloud.s3_of(5000)

    def use() -> None:
        s3.put_object(Bucket="sets", Key="step/1", Body=b"weights")
        assert s3.get_object(Bucket="sets", Key="step/1")["Body"].read() == b"weights"
        assert [each["Key"] for each in s3.list_objects_v2(Bucket="sets")["Contents"]] == ["step/1"]
        assert [each["Name"] for each in s3.list_buckets()["Buckets"]] == ["sets"]
        s3.delete_object(Bucket="sets", Key="step/1")
        for call, request in (
            (s3.list_objects_v2, {"Bucket": "elsewhere"}),
            (s3.put_object, {"Bucket": "elsewhere", "Key": "x", "Body": b""}),
            (s3.copy_object, {"Bucket": "elsewhere", "Key": "x", "CopySource": "sets/x"}),
            (s3.create_bucket, {"Bucket": "new-sets"}),
            (s3.delete_bucket, {"Bucket": "sets"}),
            (s3.put_bucket_versioning, {"Bucket": "sets", "VersioningConfiguration": {"Status": "Enabled"}}),
            (s3.delete_bucket_policy, {"Bucket": "sets"}),
        ):
            assert error_of(call, **request) == DENIED, call

    await asyncio.to_thread(use)
    requests = StoreSignedRequests(cloud.running.store, SystemClock())
    key_id, secret = cloud.login.keys[5000]
    assert await requests.token(key_id) is None
    assert not any(secret in word or key_id in word for words in cloud.login.arguments for word in words)
    kept = [each for each in cloud.home.glob("*.db*") if secret.encode() in each.read_bytes()]
    assert not kept and list(cloud.home.glob("*.db"))


async def test_rights_are_those_of_the_time_of_use(cloud: Cloud) -> None:
    ann, token = await cloud.person("ann")
    cluster, group, _ = await with_people(cloud, ann)
    await cloud.call_as(token, ALLOW, cluster.metadata.id)
    await until_keys(cloud, cluster, 5000)
    bucket = await cloud.bucket("sets")
    s3 = cloud.s3_of(5000)
    await until_code(s3, "AccessDenied")
    permit = await cloud.permit(group, bucket, "storage.viewer")
    await until_code(s3, "")
    await cloud.call("nebius.iam.v1.AccessPermitService/Delete", id=permit)
    await until_code(s3, "AccessDenied")
    await cloud.call("nebius.iam.v1.TenantUserAccountService/Block", id=ann)
    await until_code(s3, UNKNOWN)


def code_of(s3: Any) -> str:
    """Return the code of the error that listing the bucket ends with; "" if it works."""
    try:
        s3.list_objects_v2(Bucket="sets")
    except ClientError as error:
        return error.response.get("Error", {}).get("Code", "")
    return ""


async def until_code(s3: Any, code: str) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(code_of, s3) != code:
            await asyncio.sleep(0.05)


async def test_who_withdraws_or_leaves_has_no_key_and_gets_none_by_coming_back(cloud: Cloud) -> None:
    ann, anns = await cloud.person("ann", "editors")
    bob, bobs = await cloud.person("bob", "editors")
    cluster, group, (_, bobs_membership) = await with_people(cloud, ann, bob)
    await cloud.bucket("sets")
    for token in (anns, bobs):
        await cloud.call_as(token, ALLOW, cluster.metadata.id)
    await until_keys(cloud, cluster, 5000, 5001)
    of_ann, of_bob = cloud.s3_of(5000), cloud.s3_of(5001)
    await until_code(of_ann, "")
    await until_code(of_bob, "")

    await cloud.call_as(anns, WITHDRAW, cluster.metadata.id)
    await until_code(of_ann, UNKNOWN)
    await cloud.call_as(anns, ALLOW, cluster.metadata.id)  # maybe before the cluster was looked at
    await until(lambda: 5000 in cloud.login.keys and cloud.login.keys[5000][0] != _id_of(of_ann))
    await until_code(cloud.s3_of(5000), "")
    await until_code(of_ann, UNKNOWN)

    await leave(cloud, bobs_membership)  # pyright: ignore[reportArgumentType]
    await until_keys(cloud, cluster, 5000)
    assert 5001 not in cloud.login.keys
    await until_code(of_bob, UNKNOWN)
    assert await refused(cloud.call_as(bobs, ALLOW, cluster.metadata.id)) == "NOT_FOUND"
    await join(cloud, group, bob)  # pyright: ignore[reportArgumentType]
    await cloud.when(cluster.metadata.id, lambda seen: len([u for u in seen.status.users if u.uid]) == 2)
    assert [key.uid for key in (await cloud.get("Cluster", cluster.metadata.id)).status.storage_keys] == [
        5000
    ]
    await cloud.call("ClusterService/Delete", id=cluster.metadata.id)
    latest = cloud.s3_of(5000)
    await until_code(latest, UNKNOWN)


def _id_of(s3: Any) -> str:
    return s3._request_signer._credentials.access_key


async def test_nobody_allows_it_for_others_or_on_clusters_of_others(cloud: Cloud) -> None:
    ann, token = await cloud.person("ann", "editors")
    _, outsiders = await cloud.person("mallory", "admins")
    cluster, _, _ = await with_people(cloud, ann)
    for path in (ALLOW, WITHDRAW):
        assert await refused(cloud.call_as(outsiders, path, cluster.metadata.id)) == "NOT_FOUND"
        assert await refused(cloud.call_as(cloud.token, path, cluster.metadata.id)) == "FAILED_PRECONDITION"
        assert await refused(cloud.call_as(token, path, "slurmcluster-e00nothing")) == "NOT_FOUND"
        assert await refused(cloud.call_as(token, path, ann)) == "NOT_FOUND"
        assert await refused(cloud.call_as("", path, cluster.metadata.id)) == "UNAUTHENTICATED"
    assert not cloud.login.keys


async def test_root_and_users_of_the_spec_act_as_the_service_account(cloud: Cloud) -> None:
    """A caller who may not act as the account can neither name it nor change a cluster that does, nor run
    jobs there.
    """
    account = await cloud.account("trainer", "editors")
    cluster = await cloud.cluster(service_account_id=account, users=[{"name": "kim"}])
    cluster = await until_keys(cloud, cluster, 0, 5000)
    assert {(key.user, key.account_id) for key in cluster.status.storage_keys} == {
        ("root", account),
        ("kim", account),
    }
    await cloud.bucket("sets")
    of_root = cloud.s3_of(0)
    await until_code(of_root, "")
    await until_code(cloud.s3_of(5000), "")

    # Slurm's editor may change clusters, and may not act as accounts.
    group = await cloud.group("slurm-editors")
    await cloud.permit(group, cloud.project_id, "slurm.editor")
    editor = await cloud.account("editor")
    await cloud.join(editor, group)
    own, cloud.token = cloud.token, await cloud.token_of(editor)
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDnLXz1SvQm9GjpJzrYqiD5mJb2kGn7m6Y7bJxv1JY8f"
    more = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
    more.metadata.id = cluster.metadata.id
    more.spec.login.ssh_public_keys.append(key)
    job = {"cluster_id": cluster.metadata.id, "script": "#!/bin/sh\n"}
    codes = {
        (await cloud.refusal("ClusterService/Update", more)).code,
        (await cloud.refusal("JobService/Submit", job)).code,
    }
    assert codes <= {contract.Code.PERMISSION_DENIED, contract.Code.NOT_FOUND}
    cloud.token = own

    await cloud.update(cluster, "spec.service_account_id", service_account_id="")
    await until_keys(cloud, cluster)
    assert not cloud.login.keys
    await until_code(of_root, UNKNOWN)


async def test_what_is_no_service_account_of_the_tenant_is_refused(cloud: Cloud) -> None:
    cluster = await cloud.cluster()
    for other in ("serviceaccount-e00nothing", cloud.project_id):
        request = contract.message("neocloud.slurm.v1.UpdateClusterRequest")(spec=cluster.spec)
        request.metadata.id, request.spec.service_account_id = cluster.metadata.id, other
        assert (await cloud.refusal("ClusterService/Update", request)).code in (
            contract.Code.INVALID_ARGUMENT,
            contract.Code.NOT_FOUND,
            contract.Code.PERMISSION_DENIED,
        )


async def test_keys_are_renewed_before_they_end_and_a_broken_login_node_holds_up_nothing(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await cloud.account("trainer", "editors")
    cloud.login.broken = b"mktemp: No space left on device"
    cluster = await cloud.cluster(service_account_id=account)
    (note,) = (each for each in cluster.status.conditions if each.type == "StorageKeys")
    assert note.status == "False" and "No space left" in note.message and not cluster.status.storage_keys
    cloud.login.broken = b""
    monkeypatch.setattr(storage_keys, "RENEWAL", storage_keys.LIFETIME + timedelta(hours=1))  # always due
    await cloud.running.store.write(lambda tx: tx.enqueue(cluster.metadata.id, datetime.now(UTC)))
    cluster = await until_keys(cloud, cluster, 0)
    assert not [each for each in cluster.status.conditions if each.type == "StorageKeys"]
    first = cloud.login.keys[0]
    await cloud.running.store.write(lambda tx: tx.enqueue(cluster.metadata.id, datetime.now(UTC)))
    await until(lambda: cloud.login.keys[0] != first)


FOR_ALL = ("neo-rclone", "rclone.config")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="changes owners, and acts as another user"
)


def deliver(
    root: Path, lines: str, endpoint: str = "https://storage.test"
) -> subprocess.CompletedProcess[str]:
    arguments = [str(root), storage_files.FOLDER, "eu-north1", endpoint, "/ca.pem", storage_files.PROFILE]
    rclone = storage_files.rclone_script("eu-north1", endpoint)
    command = ["/bin/sh", "-c", storage_files.DELIVER, DELIVER_KEYS, *arguments, rclone]
    return subprocess.run(command, input=lines, capture_output=True, text=True, check=False, timeout=60)


def as_user(uid: int, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **variables}
    return subprocess.run(
        [*become, *command], env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.fixture
def shared_root() -> Any:
    """A root that other users may enter; pytest's folders are closed to them."""
    folder = Path(tempfile.mkdtemp(prefix="storage-keys-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "etc").mkdir()
    (folder / "etc" / "bash.bashrc").write_text("echo mine\n")
    yield folder
    shutil.rmtree(folder)


@needs_root
def test_a_user_reads_its_own_key_and_no_other(shared_root: Path) -> None:
    assert deliver(shared_root, "5000 NCTKann secret-of-ann 2026-01-01T00:00:00Z\n").returncode == 0
    assert deliver(shared_root, "5001 NCTKbob secret-of-bob 2026-01-01T00:00:00Z\n").returncode == 0
    folder = shared_root / storage_files.FOLDER[1:]
    said = as_user(5000, "cat", str(folder / "5000.json"))
    assert json.loads(said.stdout) == {
        "Version": 1,
        "AccessKeyId": "NCTKann",
        "SecretAccessKey": "secret-of-ann",
        "Expiration": "2026-01-01T00:00:00Z",
    }
    assert as_user(5001, "cat", str(folder / "5000.json")).returncode == 1
    assert as_user(5000, "cat", str(folder / "5001.json")).returncode == 1
    for attack in (f"rm -f {folder}/5001.json", f"touch {folder}/x", f"mv {folder}/5000.json {folder}/y"):
        assert as_user(5000, "sh", "-c", attack).returncode == 1, attack
    assert "credential_process = cat " + storage_files.FOLDER in (folder / "5000.config").read_text()
    assert sorted(each.name for each in folder.iterdir()) == [
        *("5000.config", "5000.json", "5001.config", "5001.json", *FOR_ALL)
    ]
    assert deliver(shared_root, "5000 -\n").returncode == 0
    assert sorted(each.name for each in folder.iterdir()) == [*("5001.config", "5001.json", *FOR_ALL)]
    bashrc = (shared_root / "etc" / "bash.bashrc").read_text()
    assert bashrc.count("neocloud-storage.sh") == 2 and bashrc.endswith("echo mine\n")  # one line


@needs_root
async def test_amazons_clients_read_it_and_a_program_that_runs_on_reads_the_next(
    cloud: Cloud, shared_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = await cloud.account("trainer", "editors")
    cluster = await cloud.cluster(service_account_id=account)
    await until_keys(cloud, cluster, 0)
    await cloud.bucket("sets")
    soon = contract.timestamp(datetime.now(UTC) + timedelta(minutes=5)).ToJsonString()
    assert deliver(shared_root, f"0 {' '.join(cloud.login.keys[0])} {soon}\n").returncode == 0
    config = shared_root / storage_files.FOLDER[1:] / "0.config"
    text = config.read_text().replace("https://storage.test", cloud.s3_url)
    config.write_text(text.replace(storage_files.FOLDER, f"{shared_root}{storage_files.FOLDER}"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    s3 = boto3.Session().client("s3")
    await until_code(s3, "")
    assert deliver(shared_root, f"0 NCTKnext secret {soon}\n").returncode == 0
    await until_code(s3, UNKNOWN)


@needs_root
@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
async def test_rclone_reads_it_and_each_user_has_its_own(cloud: Cloud, shared_root: Path) -> None:
    """Also while it runs on, and in a shell that names an authority, where rclone alone ends."""
    account = await cloud.account("trainer", "editors")
    cluster = await cloud.cluster(service_account_id=account, users=[{"name": "kim"}])
    await until_keys(cloud, cluster, 0, 5000)
    await cloud.bucket("sets")
    await asyncio.to_thread(use_rclone, cloud, shared_root)


def use_rclone(cloud: Cloud, shared_root: Path) -> None:
    folder, key = shared_root / storage_files.FOLDER[1:], cloud.login.keys[5000]
    cloud.s3_of(0).put_object(Bucket="sets", Key="train/one", Body=b"hello")

    def give(key: tuple[str, str], lifetime: timedelta) -> None:
        ends = contract.timestamp(datetime.now(UTC) + lifetime).ToJsonString()
        assert deliver(shared_root, f"5000 {' '.join(key)} {ends}\n", cloud.s3_url).returncode == 0
        for name in FOR_ALL:  # as if this machine's root were the shared root
            text = (folder / name).read_text().replace(storage_files.FOLDER, str(folder))
            (folder / name).write_text(text)

    def rclone(uid: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        return as_user(uid, str(folder / "neo-rclone"), *arguments, AWS_CA_BUNDLE="/etc/passwd")

    give(key, timedelta(hours=1))
    copied = rclone(5000, "cat", "neo:sets/train/one")
    assert (copied.stdout, copied.stderr) == ("hello", "")
    said = rclone(5001, "cat", "neo:sets/train/one")
    assert said.returncode == 1 and "neo slurm storage allow" in said.stderr and not said.stdout
    said = rclone(5000, "mount", "neo:sets", "/mnt")
    assert said.returncode == 1 and "nodes cannot mount" in said.stderr

    give(("NCTKwrong", "wrong"), timedelta(seconds=1))
    port = free_port()
    command = [str(folder / "neo-rclone"), "serve", "http", "neo:sets", f"--addr=127.0.0.1:{port}"]
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    become = ["setpriv", "--reuid=5000", "--regid=5000", "--clear-groups", "--inh-caps=-all"]
    serving = subprocess.Popen([*become, *command], env=environment, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: status_of(port) is not None, "rclone to answer")
        assert status_of(port) != 200
        give(key, timedelta(hours=1))
        wait_until(lambda: status_of(port) == 200, "rclone to read the next key")
        for name in ("cmdline", "environ"):
            shown = Path(f"/proc/{serving.pid}/{name}").read_bytes()
            assert b"rclone" in shown.lower() and key[1].encode() not in shown
    finally:
        serving.terminate()
        serving.wait()


def status_of(port: int) -> int | None:
    """Return what a server on this machine answers for the object; None while it does not."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/train/one", trust_env=False).status_code
    except httpx.TransportError:
        return None


@needs_root
def test_what_a_user_makes_of_its_own_file_leads_nowhere(shared_root: Path) -> None:
    """It may be a link, readable by others, or kept open: the next key is a new file."""
    line = "5000 NCTKann {} 2026-01-01T00:00:00Z\n"
    assert deliver(shared_root, line.format("one")).returncode == 0
    (shared_root / storage_files.FOLDER[1:] / ".new.cut-off").write_text("secret")
    key = shared_root / storage_files.FOLDER[1:] / "5000.json"
    assert as_user(5000, "chmod", "666", str(key)).returncode == 0
    with key.open() as held:
        victim = shared_root / "etc" / "shadow"
        victim.write_text("root's\n")
        key.unlink()
        key.symlink_to(victim)  # worse than a user can
        assert deliver(shared_root, line.format("two")).returncode == 0
        assert "two" not in held.read()
    assert not list(key.parent.glob(".new.*"))
    assert victim.read_text() == "root's\n" and victim.stat().st_uid == 0
    assert not key.is_symlink() and key.stat().st_mode & 0o777 == 0o400 and key.stat().st_uid == 5000


@needs_root
def test_shells_find_the_key_unless_a_user_has_set_up_another(shared_root: Path) -> None:
    profile = shared_root / "profile.sh"
    folder = shared_root / "keys"
    folder.mkdir()
    (folder / "5000.config").write_text("")
    profile.write_text(storage_files.PROFILE.replace(storage_files.FOLDER, str(folder)))
    for path, mode in ((profile, 0o644), (folder, 0o755), (folder / "5000.config", 0o644)):
        path.chmod(mode)  # whatever the umask is
    print_it = f'. {profile}; echo "${{AWS_CONFIG_FILE:-none}}"'
    for shell in ("bash", "sh"):
        assert as_user(5000, shell, "-ec", print_it).stdout.strip() == str(folder / "5000.config")
        assert as_user(5001, shell, "-ec", print_it).stdout.strip() == "none"
        assert as_user(5000, shell, "-ec", print_it, AWS_PROFILE="own").stdout.strip() == "none"
        of_root = str(folder / "0.config")  # as in a shell that root gave another user
        assert as_user(5001, shell, "-ec", print_it, AWS_CONFIG_FILE=of_root).stdout.strip() == "none"
        assert as_user(5000, shell, "-ec", print_it, AWS_CONFIG_FILE="/own").stdout.strip() == "/own"
    (shared_root / ".aws").mkdir()
    (shared_root / ".aws").chmod(0o755)
    (shared_root / ".aws" / "credentials").write_text("")
    assert as_user(5000, "bash", "-c", print_it, HOME=str(shared_root)).stdout.strip() == "none"
