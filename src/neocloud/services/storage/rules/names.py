"""Names of buckets, as S3 has them: each is a DNS label or several, since clients make host names of them."""

import re

_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_ADDRESS = re.compile(r"[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+")
_PREFIXES = ("xn--", "sthree-", "amzn-s3-demo-")
_SUFFIXES = ("-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3")


def name_problem(name: str) -> str:
    """Return why this is not a name of a bucket; "" where it is one."""
    if not _NAME.fullmatch(name):
        return (
            f"is {name!r}; must be 3 to 63 of a-z, 0-9, '-' and '.', and start and end with a letter or digit"
        )
    if ".." in name or ".-" in name or "-." in name:
        return f"is {name!r}; each part between dots must start and end with a letter or digit"
    if _ADDRESS.fullmatch(name):
        return f"is {name!r}; must not look like an IP address"
    if name.startswith(_PREFIXES) or name.endswith(_SUFFIXES):
        return (
            f"is {name!r}; S3 reserves names that begin with {_any(_PREFIXES)} or end with {_any(_SUFFIXES)}"
        )
    return ""


def _any(parts: tuple[str, ...]) -> str:
    return ", ".join(parts)
