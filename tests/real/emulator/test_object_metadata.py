"""A cloud that keeps the metadata of its objects in PostgreSQL, by the option of `neo up`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
from nebius.api.nebius.common.v1 import ResourceMetadata
from nebius.api.nebius.storage.v1 import BucketServiceClient, BucketSpec, CreateBucketRequest
from psycopg.conninfo import conninfo_to_dict

from neocloud.core.osfiles import create_file
from neocloud.testing.emulator import connected, emulator_process
from neocloud.testing.postgres import running_postgres
from tests.real.emulator.test_object_storage import create, make_key, s3_client, until


@contextmanager
def away(address: str) -> Iterator[None]:
    """Let the server end the connections of the gateway, and be found by nobody, while the context lasts."""
    socket = Path(str(conninfo_to_dict(address)["host"])) / ".s.PGSQL.5432"
    with psycopg.connect(address, autocommit=True) as connection:
        socket.rename(socket.with_name("away"))
        try:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'neocloud-objects'"
            )
            yield
        finally:
            socket.with_name("away").rename(socket)


def test_metadata_in_postgresql(tmp_path: Path) -> None:
    home = tmp_path / "cloud"
    home.mkdir(mode=0o700)
    with running_postgres() as address:
        file = tmp_path / "url"
        create_file(file, address)
        options = [f"--object-metadata={file}"]
        with emulator_process(home, options=options), connected(home) as cloud, ExitStack() as stack:
            sdk = cloud.sdk()
            stack.callback(sdk.sync_close)
            create(sdk, cloud, "data")
            _, aws_id, secret = make_key(sdk, cloud, "editors")
            s3 = s3_client(cloud, aws_id, secret)
            s3.put_object(Bucket="data", Key="k", Body=b"1")
            assert s3.get_object(Bucket="data", Key="k")["Body"].read() == b"1"
            with away(address):
                for call in (s3.get_object, s3.head_bucket, s3.list_objects_v2):
                    options_of = {"Key": "k"} if call == s3.get_object else {}
                    with pytest.raises(s3.exceptions.ClientError, match="SlowDown|503"):
                        call(Bucket="data", **options_of)
                with pytest.raises(s3.exceptions.ClientError, match="SlowDown") as refused:
                    s3.put_object(Bucket="data", Key="k", Body=b"2")
                assert "postgresql" not in str(refused.value)
                metadata = ResourceMetadata(parent_id=cloud.project_id, name="later")
                request = CreateBucketRequest(metadata=metadata, spec=BucketSpec())
                made = BucketServiceClient(sdk).create(request).wait()
            made.sync_wait()
            until(lambda: "later" in [each["Name"] for each in s3.list_buckets()["Buckets"]])
            assert s3.get_object(Bucket="data", Key="k")["Body"].read() == b"1"
            s3.put_object(Bucket="later", Key="k", Body=b"3")
        assert not list(home.glob("**/meta.db"))
        with emulator_process(home, options=options), connected(home) as cloud:
            s3 = s3_client(cloud, aws_id, secret)
            assert until(lambda: s3.get_object(Bucket="later", Key="k")["Body"].read()) == b"3"
        with pytest.raises(RuntimeError, match="are not moved"), emulator_process(home, options=[]):
            pass
        file.chmod(0o644)
        with (
            pytest.raises(RuntimeError, match="open to other users"),
            emulator_process(home, options=options),
        ):
            pass
