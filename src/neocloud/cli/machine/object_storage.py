# pyright: strict
"""Rows and warnings of `neo status` about objects: the last scrub, where their bodies are, and buckets
without an owner.
"""

from collections.abc import Iterator
from datetime import datetime

from neocloud.cli.output import JsonObject, counted, size_text

FEW = 5


def object_rows(storage: JsonObject) -> Iterator[tuple[str, object]]:
    """Yield the rows for a report of the storage service; none for one of an earlier release."""
    scrub = storage.get("scrub")
    if scrub:
        at = f"{datetime.fromisoformat(scrub['finished_at']):%Y-%m-%d %H:%M} UTC"
        what = f"{counted(scrub['versions'], 'version')} ({size_text(scrub['bytes']) or '0 KiB'})"
        found = counted(scrub["problem_count"], "problem") if scrub["problem_count"] else "all whole"
        yield "  verified", f"{at}: {what}, {found}"
    elif storage:
        yield "  verified", "not yet; every night at 02:00 UTC"
    if place := storage.get("blob_place"):
        state = "does not work" if place["problem"] else "works"
        yield "  bodies in", f"{place['name']} at {place['endpoint']}, which {state}"


def object_warnings(storage: JsonObject) -> Iterator[str]:
    place: JsonObject = storage.get("blob_place") or JsonObject()
    if place.get("problem"):
        since = f"{datetime.fromisoformat(place['since']):%Y-%m-%d %H:%M} UTC"
        yield (
            f"The engine that has the bodies of objects cannot be used since {since}: {place['problem']}"
            " Clients get 503 SlowDown until the engine answers again."
        )
    scrub: JsonObject = storage.get("scrub") or JsonObject()
    if scrub.get("problem_count"):
        first = "; ".join(_place(each) for each in scrub["problems"][:FEW])
        yield (
            f"Objects are damaged or missing: {first}. `neo storage verify` lists all; bring them back from a"
            " backup of the folder objects."
        )
    if number := storage.get("orphan_bucket_count"):
        names = ", ".join(f"{each['name']} ({each['id']})" for each in storage["orphan_buckets"][:FEW])
        yield (
            f"The object gateway has {counted(number, 'bucket')} that the control plane does not: {names}."
            " They are kept. One of the two was restored from an older backup, or files were copied."
        )


def _place(problem: JsonObject) -> str:
    where = "/".join(each for each in (problem["bucket"], problem["key"]) if each) or "the store"
    version = f" (version {problem['version_id']})" if problem["version_id"] else ""
    return f"{where}{version}: {problem['what']}"
