"""An object store with inventories that the stand-in control plane lists, and their reports read by boto3."""

import csv
import gzip
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import md5
from itertools import count
from typing import Any
from urllib.parse import unquote

import pyarrow
import pyarrow.parquet
from neocloud.messages.nebius.storage.v1 import InventorySpec, InventoryStatus
from neocloud.messages.neocloud.storage.v1 import GatewayInventory, InventoryReport

from neocloud.core import contract
from neocloud.testing.waiting import wait_until
from tests.fast.object_gateway.s3.served import Served

_NUMBERS = count(1)


@dataclass
class Inventories:
    """The inventories of a source bucket, written into a destination bucket."""

    served: Served
    source: str
    destination: str

    def start(self, *, subject_id: str = "", **spec: Any) -> str:
        """Have a new inventory run; return its id."""
        inventory_id = f"storagebucketinventory-e00i{next(_NUMBERS)}"
        named = self.served.control_plane.named
        whole = {
            "enabled": True,
            "destination_bucket_id": named(self.destination).id,
            "destination_prefix": "reports",
            "output_format": "CSV_GZIP",
            "schedule": "DAILY",
            **spec,
        }
        desired = GatewayInventory(
            id=inventory_id,
            source_bucket_id=named(self.source).id,
            subject_id=subject_id or self.served.owner.subject_id,
            tenant_id="tenant-a",
            spec=contract.from_dict(InventorySpec, whole),
        )
        self._put(desired)
        return inventory_id

    def change(self, inventory_id: str, change: Callable[[GatewayInventory], None]) -> None:
        desired = GatewayInventory()
        desired.CopyFrom(self.served.control_plane.inventory(inventory_id))
        change(desired)
        self._put(desired)

    def _put(self, desired: GatewayInventory) -> None:
        async def put() -> None:
            self.served.control_plane.put_inventory(desired)

        self.served.call(put())

    def when(self, inventory_id: str, holds: Callable[[InventoryReport], object]) -> InventoryReport:
        """Return the report on an inventory once it `holds` for it."""

        def look() -> InventoryReport:
            found = self.served.control_plane.inventory_reports.get(inventory_id)
            return found if found is not None else InventoryReport()

        return wait_until(look, holds=lambda found: found.id and holds(found), poll_seconds=0.01)

    def written(self, **spec: Any) -> "Written":
        """Return the report of a new inventory, once it is written."""
        return self.report(self.start(**spec))

    def report(self, inventory_id: str) -> "Written":
        done = self.when(
            inventory_id, lambda found: found.status.error_code or found.status.HasField("last_success")
        )
        assert error(done) == "NO_ERROR"
        (manifest,) = [key for key in self.keys(self.destination) if is_manifest(key, inventory_id)]
        return read_report(self.served.client(), self.destination, manifest)

    def failed(self, inventory_id: str, code: str) -> None:
        """Wait until a run has failed for this reason, and left nothing."""
        self.when(inventory_id, lambda found: error(found) == code)
        assert not [key for key in self.keys(self.destination) if inventory_id in key]

    def keys(self, bucket: str) -> list[str]:
        found = self.served.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [each["Key"] for page in found for each in page.get("Contents", [])]

    def put(self, key: str, body: bytes = b"content", **more: Any) -> Any:
        """Put an object into the source."""
        return self.served.client().put_object(Bucket=self.source, Key=key, Body=body, **more)


@dataclass
class Written:
    key: str
    """The key of the manifest."""
    manifest: dict[str, Any]
    text: str
    """The data files in CSV, one after the other."""
    tables: list[pyarrow.Table]
    """Those in Parquet."""

    @property
    def columns(self) -> list[str]:
        return self.manifest["fileSchema"].split(", ")

    @property
    def lines(self) -> list[dict[str, str]]:
        found = csv.reader(io.StringIO(self.text, newline=""))
        return [dict(zip(self.columns, line, strict=True)) for line in found]

    @property
    def names(self) -> list[str]:
        """Return the keys that are listed, as a client decodes them."""
        return [unquote(each["Key"]) for each in self.lines]


def read_report(s3: Any, bucket: str, manifest_key: str) -> Written:
    """Return a report, whose checksums are right."""
    body = s3.get_object(Bucket=bucket, Key=manifest_key)["Body"].read()
    checksum = s3.get_object(Bucket=bucket, Key=manifest_key.replace(".json", ".checksum"))["Body"].read()
    assert checksum.decode() == md5(body).hexdigest()
    manifest, text, tables = json.loads(body), "", []
    for file in manifest["files"]:
        content = s3.get_object(Bucket=bucket, Key=file["key"])["Body"].read()
        assert (len(content), md5(content).hexdigest()) == (file["size"], file["MD5checksum"])
        if manifest["fileFormat"] == "Parquet":
            tables.append(pyarrow.parquet.read_table(io.BytesIO(content)))
        else:
            text += gzip.decompress(content).decode("ascii")
    return Written(manifest_key, manifest, text, tables)


def is_manifest(key: str, inventory_id: str) -> bool:
    return f"/{inventory_id}/" in key and key.endswith("/manifest.json")


def error(report: InventoryReport) -> str:
    return InventoryStatus.Error.Name(report.status.error_code)
