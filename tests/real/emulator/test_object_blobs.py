"""A cloud that keeps the bodies of its objects in another S3 engine, by the options of `neo up`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from neocloud.testing.emulator import Emulator, connected, emulator_process
from tests.fast.object_gateway.s3.served import serving
from tests.fast.object_store.engine_proxy import engine_proxy
from tests.real.emulator.test_object_storage import create, make_key, s3_client, until

BODY = bytes(range(256)) * 1000


def storage_report(cloud: Emulator) -> Any:
    headers = {"authorization": f"Bearer {cloud.client.tokens.token()}"}
    return httpx.get(f"http://{cloud.http_endpoint}/status", headers=headers).json()["reports"]["storage"]


def test_bodies_in_another_engine(tmp_path: Path) -> None:
    home = tmp_path / "cloud"
    home.mkdir(mode=0o700)
    with serving(tmp_path / "engine") as engine, engine_proxy(engine.address) as (proxy, url):
        bucket, key_file = engine.make_bucket(), tmp_path / "key"
        key_file.touch(mode=0o600)
        key_file.write_text(
            f"[default]\naws_access_key_id={engine.owner.aws_access_key_id}\n"
            f"aws_secret_access_key={engine.owner.secret}\n"
        )
        options = [f"--object-blobs=s3://{bucket}/cloud", "--object-blobs-region=eu-north1"]
        options += [f"--object-blobs-endpoint={url}", f"--object-blobs-credentials={key_file}"]
        with emulator_process(home, options=options), connected(home) as cloud, ExitStack() as stack:
            sdk = cloud.sdk()
            stack.callback(sdk.sync_close)
            create(sdk, cloud, "data")
            _, aws_id, secret = make_key(sdk, cloud, "editors")
            s3 = s3_client(cloud, aws_id, secret)
            s3.put_object(Bucket="data", Key="k", Body=BODY)
            assert s3.get_object(Bucket="data", Key="k")["Body"].read() == BODY
            stored = engine.client().list_objects_v2(Bucket=bucket, Prefix="cloud/")["Contents"]
            assert sorted(len(each["Key"]) for each in stored) == [len("cloud/owner"), len("cloud/") + 38]
            place = until(lambda: storage_report(cloud)["blob_place"])
            assert (place["name"], place["problem"]) == (f"s3://{bucket}/cloud", "")
            proxy.is_down = True
            with pytest.raises(s3.exceptions.ClientError, match="SlowDown"):
                s3.get_object(Bucket="data", Key="k")
            assert "ConnectionError" in until(lambda: storage_report(cloud)["blob_place"]["problem"])
            proxy.is_down = False
            until(lambda: not storage_report(cloud)["blob_place"]["problem"])
            assert s3.get_object(Bucket="data", Key="k")["Body"].read() == BODY
        for given, step in (
            ([], f"object-blobs s3://{bucket}/cloud"),
            (options[:3], "object-blobs-credentials FILE"),
        ):
            with (
                pytest.raises(RuntimeError, match=f"`neo config set {step}`"),
                emulator_process(home, options=given),
            ):
                pass
        key_file.chmod(0o644)
        with (
            pytest.raises(RuntimeError, match="open to other users"),
            emulator_process(home, options=options),
        ):
            pass
