"""A gateway with one transfer, in a process that a test kills: see test_faults.py."""

import sys
import time
from pathlib import Path
from typing import Any

from neocloud.messages.neocloud.storage.v1 import GatewayBucket, GatewayTransfer

from neocloud.object_gateway.work.transfers import copying
from neocloud.testing.object_control_plane import FakeControlPlane
from tests.fast.object_gateway.s3.served import Served, serving
from tests.fast.object_gateway.work.transfers.cloud import Transfers, numbers, outcome, phase

PART_BYTES = 5 * 1024**2


def main(home: Path, url: str, is_first: bool) -> None:
    """Run until two parts are stored; or continue, until the transfer has ended."""
    copying.PART_BYTES = PART_BYTES
    bucket_file, transfer_file = home / "bucket", home / "transfer"
    control_plane = FakeControlPlane()
    if not is_first:
        control_plane.adopt(GatewayBucket.FromString(bucket_file.read_bytes()))
        control_plane.put_transfer(GatewayTransfer.FromString(transfer_file.read_bytes()))
    with serving(home, allow_private_transfers=True, control_plane=control_plane) as served:
        transfers = Transfers(served, url, served, "source")
        if is_first:
            _start(served, transfers, bucket_file, transfer_file)
        desired = GatewayTransfer.FromString(transfer_file.read_bytes())
        transfers.bucket = desired.spec.destination.nebius.bucket_name
        report = transfers.ended(desired.id)
        found = (phase(report), report.last_iteration.sequence_number, outcome(report.last_iteration))
        sizes = [len(transfers.body(key)) for key in transfers.stored()]
        _say(*found, *numbers(report.last_iteration), *transfers.stored(), *sizes)


def _start(served: Served, transfers: Transfers, bucket_file: Path, transfer_file: Path) -> None:
    transfers.bucket = served.make_bucket()
    transfer_id = transfers.start(limiters={"bandwidth_bytes_per_second": 6 * 1024**2})
    bucket_file.write_bytes(served.control_plane.named(transfers.bucket).SerializeToString())
    transfer_file.write_bytes(served.control_plane.transfer(transfer_id).SerializeToString())
    while _parts(served.client(), transfers.bucket) < 2:
        time.sleep(0.01)
    _say("two parts are stored")
    sys.stdin.read()  # until it is killed


def _parts(s3: Any, bucket: str) -> int:
    for upload in s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []):
        found = s3.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        return len(found.get("Parts", []))
    return 0


def _say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "first")
