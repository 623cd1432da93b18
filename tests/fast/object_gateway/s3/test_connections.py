"""Connections: TLS, where boto3 sends checksums as trailers, and clients that are slow or gone."""

import io
import socket
from pathlib import Path

import pytest
from boto3.s3.transfer import TransferConfig

from tests.fast.object_gateway.s3.raw import code_of, signed_head, status_of
from tests.fast.object_gateway.s3.served import read_all, serving

MIB = 1024**2


def test_tls(tmp_path: Path) -> None:
    with serving(tmp_path, tls=True) as s3:
        client, bucket = s3.client(), s3.make_bucket()
        sent: list[str] = []
        client.meta.events.register(
            "before-send.s3", lambda request, **_: sent.append(str(request.headers.get("x-amz-trailer")))
        )
        for size in (0, 1, 100_000, 3 * MIB):
            body = bytes(each % 251 for each in range(size))
            client.put_object(Bucket=bucket, Key="k", Body=io.BytesIO(body))
            assert client.get_object(Bucket=bucket, Key="k")["Body"].read() == body
        assert "b'x-amz-checksum-crc32'" in sent or "x-amz-checksum-crc32" in sent, sent
        body = bytes(12 * MIB)
        config = TransferConfig(multipart_threshold=5 * MIB, multipart_chunksize=5 * MIB)
        client.upload_fileobj(io.BytesIO(body), bucket, "big", Config=config)
        assert client.get_object(Bucket=bucket, Key="big")["Body"].read() == body


@pytest.mark.parametrize("sent", [b"", b"half"])
def test_slow_bodies_are_given_up(tmp_path: Path, sent: bytes) -> None:
    with serving(tmp_path, body_quiet_seconds=0.5) as s3:
        bucket = s3.make_bucket()
        head = signed_head(s3, "PUT", f"/{bucket}/k", {"Content-Length": "100"})
        with socket.create_connection(s3.address, timeout=20) as connection:
            connection.sendall(head + sent)
            answer = read_all(connection)
        assert (status_of(answer), code_of(answer)) == (408, "RequestTimeout")
        assert "Contents" not in s3.client().list_objects_v2(Bucket=bucket)


def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as s3:
        bucket = s3.make_bucket()
        s3.client().put_object(Bucket=bucket, Key="k", Body=b"x" * 100_000)
    with serving(tmp_path) as s3:
        assert s3.store.bucket(bucket).name == bucket
