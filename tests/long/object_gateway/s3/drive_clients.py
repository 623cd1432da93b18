"""Typical uses of S3 clients in Python, one function a client; run where those clients are installed.

    python drive_clients.py CLIENT ENDPOINT BUCKET FOLDER

FOLDER has a file `big` and a tree of small files. The keys of access are in the environment.
"""

import io
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

PART = 5 * 1024**2
REGION = os.environ["AWS_DEFAULT_REGION"]


def drive_s3fs(endpoint: str, bucket: str, folder: Path) -> None:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=endpoint)
    big = (folder / "big").read_bytes()
    with files.open(f"{bucket}/dir/big", "wb") as written:
        written.write(big)
    with files.open(f"{bucket}/dir/big", "rb") as found:
        found.seek(10_000_000)
        assert found.read(1000) == big[10_000_000:10_001_000]
    files.put(str(folder / "tree"), f"{bucket}/tree", recursive=True)
    listed = files.find(bucket)
    assert listed == [f"{bucket}/{key}" for key in ("dir/big", "tree/below/two ä+", "tree/one")], listed
    files.mv(f"{bucket}/dir/big", f"{bucket}/moved")
    assert files.cat(f"{bucket}/moved") == big and not files.exists(f"{bucket}/dir/big")
    with files.open(f"{bucket}/log", "wb") as written:
        written.write(b"1" * (PART + 1))
    with files.open(f"{bucket}/log", "ab") as written:
        written.write(b"2")
    assert files.tail(f"{bucket}/log", 2) == b"12" and files.size(f"{bucket}/log") == PART + 2
    assert urlopen(files.url(f"{bucket}/tree/one"), timeout=20).read() == b"1"
    files.rm(bucket, recursive=True)
    assert not files.exists(bucket)


def drive_crt(endpoint: str, bucket: str, folder: Path) -> None:
    """s3transfer on AWS's common runtime, which boto3 takes for AWS's own endpoints alone."""
    import botocore.session
    from s3transfer.crt import (
        BotocoreCRTCredentialsWrapper,
        BotocoreCRTRequestSerializer,
        CRTTransferManager,
        create_s3_crt_client,
    )

    session = botocore.session.get_session()
    keys = BotocoreCRTCredentialsWrapper(session.get_credentials()).to_crt_credentials_provider()
    client = create_s3_crt_client(REGION, keys, use_ssl=False, part_size=PART)
    serializer = BotocoreCRTRequestSerializer(session, {"region_name": REGION, "endpoint_url": endpoint})
    with CRTTransferManager(client, serializer) as manager:
        for path in ("big", "tree/one"):
            manager.upload(str(folder / path), bucket, path).result()
            manager.download(bucket, path, str(folder / "back")).result()
            assert (folder / "back").read_bytes() == (folder / path).read_bytes()
        manager.delete(bucket, "tree/one").result()


def drive_duckdb(endpoint: str, bucket: str, folder: Path) -> None:
    import duckdb
    import duckdb_extension_httpfs

    extension = next(Path(duckdb_extension_httpfs.__file__).parent.rglob("httpfs.duckdb_extension"))
    host = endpoint.removeprefix("http://")
    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    place = f"s3://{bucket}/duck"
    with duckdb.connect() as database:
        database.execute(f"LOAD '{extension}'")
        database.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{key}', SECRET '{secret}', REGION '{REGION}',"
            f" ENDPOINT '{host}', URL_STYLE 'path', USE_SSL false)"
        )
        database.execute(
            f"COPY (SELECT i, hash(i)::VARCHAR AS h FROM range(1000000) t(i)) TO '{place}/t.parquet'"
        )
        database.execute(
            f"COPY (SELECT i, i % 3 AS p FROM range(999) t(i)) TO '{place}/parts'"
            " (FORMAT parquet, PARTITION_BY p)"
        )
        counted = database.execute(f"SELECT count(*), sum(i) FROM '{place}/t.parquet'").fetchall()
        assert counted == [(1_000_000, 499_999_500_000)], counted
        parts = f"read_parquet('{place}/parts/**/*.parquet', hive_partitioning = true)"
        found = database.execute(f"SELECT p, count(*) FROM {parts} GROUP BY p ORDER BY p").fetchall()
        assert found == [(0, 333), (1, 333), (2, 333)], found


def drive_obstore(endpoint: str, bucket: str, folder: Path) -> None:
    """Use object_store, the Rust library that Polars, Delta Lake and Lance use."""
    import obstore
    from obstore.exceptions import AlreadyExistsError, PreconditionError
    from obstore.store import S3Store

    store = S3Store(bucket, endpoint=endpoint, region=REGION, client_options={"allow_http": True})
    big = (folder / "big").read_bytes()
    obstore.put(store, "big", big, chunk_size=PART)
    assert bytes(obstore.get(store, "big").bytes()) == big
    ranges = obstore.get_ranges(store, "big", starts=[0, 12_000_000], ends=[10, 12_000_010])
    assert [bytes(each) for each in ranges] == [big[:10], big[12_000_000:12_000_010]]
    obstore.put(store, "one", b"1", mode="create")
    first = {"e_tag": obstore.head(store, "one")["e_tag"]}
    obstore.put(store, "one", b"2", mode=first)
    for mode, refusal in (("create", AlreadyExistsError), (first, PreconditionError)):
        try:
            obstore.put(store, "one", b"3", mode=mode)
        except refusal:
            continue
        raise AssertionError(f"It was not refused: {mode}")
    obstore.rename(store, "one", "two ä+%")
    keys = [each["path"] for each in obstore.list_with_delimiter(store)["objects"]]
    assert keys == ["big", "two ä+%"], keys
    obstore.delete(store, keys)


def drive_minio(endpoint: str, bucket: str, folder: Path) -> None:
    from minio import Minio
    from minio.commonconfig import ComposeSource
    from minio.deleteobjects import DeleteObject

    key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    host = endpoint.removeprefix("http://")
    client = Minio(host, access_key=key, secret_key=secret, secure=False, region=REGION)
    big = (folder / "big").read_bytes()
    client.put_object(bucket, "small", io.BytesIO(b"hello"), 5, metadata={"colour": "red"})
    assert client.stat_object(bucket, "small").metadata["x-amz-meta-colour"] == "red"
    client.put_object(bucket, "two ä+", io.BytesIO(big), -1, part_size=PART)  # of an unknown length
    client.compose_object(bucket, "joined", [ComposeSource(bucket, "two ä+"), ComposeSource(bucket, "small")])
    client.fget_object(bucket, "joined", str(folder / "back"))
    assert (folder / "back").read_bytes() == big + b"hello"
    link = client.presigned_get_object(bucket, "small", expires=timedelta(hours=1))
    assert urlopen(link, timeout=20).read() == b"hello"
    keys = [each.object_name for each in client.list_objects(bucket, recursive=True)]
    assert keys == ["joined", "small", "two ä+"], keys
    assert not list(client.remove_objects(bucket, [DeleteObject(each) for each in keys]))
    assert not list(client.list_objects(bucket))


def drive_torch(endpoint: str, bucket: str, folder: Path) -> None:
    """AWS's connector for PyTorch, whose client is that of Mountpoint for S3."""
    import torch
    from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset

    config = S3ClientConfig(force_path_style=True, part_size=PART)
    where = {"region": REGION, "endpoint": endpoint, "s3client_config": config}
    checkpoint = S3Checkpoint(**where)
    model = torch.nn.Linear(1500, 1500)
    with checkpoint.writer(f"s3://{bucket}/model.ckpt") as written:
        torch.save(model.state_dict(), written)
    with checkpoint.reader(f"s3://{bucket}/model.ckpt") as found:
        assert torch.equal(torch.load(found)["weight"], model.weight)
    (streamed,) = S3IterableDataset.from_prefix(f"s3://{bucket}/", **where)
    mapped = S3MapDataset.from_prefix(f"s3://{bucket}/", **where)
    assert len(mapped) == 1 and mapped[0].read() == streamed.read()


def drive_pyarrow(endpoint: str, bucket: str, folder: Path) -> None:
    """AWS's SDK for C++, in Arrow's file system."""
    import pyarrow
    from pyarrow import dataset, parquet
    from pyarrow.fs import FileSelector, S3FileSystem

    files = S3FileSystem(endpoint_override=endpoint.removeprefix("http://"), scheme="http", region=REGION)
    big = (folder / "big").read_bytes()
    with files.open_output_stream(f"{bucket}/big") as written:
        written.write(big)
    with files.open_input_file(f"{bucket}/big") as found:
        assert found.read_at(1000, 12_000_000) == big[12_000_000:12_001_000]
        assert found.read() == big
    table = pyarrow.table({"i": range(30_000), "p": [each % 3 for each in range(30_000)]})
    parquet.write_table(table, f"{bucket}/one.parquet", filesystem=files)
    assert parquet.read_table(f"{bucket}/one.parquet", filesystem=files).equals(table)
    where = {"format": "parquet", "partitioning": ["p"], "filesystem": files}
    dataset.write_dataset(table, f"{bucket}/parts", partitioning_flavor="hive", **where)
    parts = dataset.dataset(f"{bucket}/parts", format="parquet", partitioning="hive", filesystem=files)
    assert parts.count_rows(filter=dataset.field("p") == 1) == 10_000
    files.move(f"{bucket}/big", f"{bucket}/moved ä+")
    found = files.get_file_info(FileSelector(bucket))
    assert sorted(each.base_name for each in found) == ["moved ä+", "one.parquet", "parts"], found
    files.delete_dir_contents(bucket)
    assert not files.get_file_info(FileSelector(bucket))


CLIENTS: dict[str, Callable[[str, str, Path], None]] = {
    "s3fs": drive_s3fs,
    "crt": drive_crt,
    "duckdb": drive_duckdb,
    "obstore": drive_obstore,
    "minio": drive_minio,
    "torch": drive_torch,
    "pyarrow": drive_pyarrow,
}

if __name__ == "__main__":
    name, endpoint, bucket, folder = sys.argv[1:]
    CLIENTS[name](endpoint, bucket, Path(folder))
