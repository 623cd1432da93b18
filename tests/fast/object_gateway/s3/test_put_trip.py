"""The number of source files that a request to put an object runs through."""

import sys
import threading
from pathlib import Path
from types import FrameType

import neocloud
from tests.fast.object_gateway.s3.served import serving
from tests.fast.test_request_page import WALKS

SOURCE = str(Path(neocloud.__file__).parent)
MOST_FILES = 34
"""A limit that only falls: 14 of the object store, 12 of the gateway, the rest of `core` and `data_plane`."""


def test_a_put_runs_through_few_files(tmp_path: Path) -> None:
    trips: list[set[str]] = []  # what runs beside one of them, such as a report by the minute, is not in all
    is_on = threading.Event()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and is_on.is_set():
            trips[-1].add(frame.f_code.co_filename)

    threading.setprofile(note)  # for the threads that are started from here on
    try:
        with serving(tmp_path) as front:
            bucket, client = front.make_bucket(), front.client()
            client.put_object(Bucket=bucket, Key="before", Body=b"a" * 20_000)
            for key in ("first", "second", "third"):
                trips.append(set())
                is_on.set()
                client.put_object(Bucket=bucket, Key=key, Body=b"a" * 20_000)
                is_on.clear()
    finally:
        threading.setprofile(None)
    files = set.intersection(*trips)
    seen = sorted(file.removeprefix(f"{SOURCE}/") for file in files if file.startswith(SOURCE))
    assert "object_store/bodies/writer.py" in seen and "object_gateway/s3/app.py" in seen
    assert len(seen) <= MOST_FILES, "\n".join(seen)
    walk = [file for part in WALKS[-2:] for file in part]
    assert walk[0] == "object_gateway/gateway.py" and walk[-1] == "object_store/metadata/contents.py"
    assert {*walk} - {*seen} == {"object_gateway/s3/handlers.py", "object_store/blob_location.py"}, (
        "they say which function and which driver, once"
    )
    assert sys.getprofile() is None
