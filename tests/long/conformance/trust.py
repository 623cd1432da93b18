"""Runs a program that trusts a cloud's authority, without changing what this machine trusts.

The published clients read the system's bundle of authorities and take no other. So the program runs in a
mount namespace of its own, in which the bundle has one authority more.
"""

from pathlib import Path

from tests.e2e.cloud import Cloud

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
_ENTER = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def trusting(cloud: Cloud, *command: str | Path) -> list[str]:
    """The command line that runs `command` so."""
    bundle = cloud.folder / "authorities.crt"
    bundle.write_bytes(BUNDLE.read_bytes() + (cloud.home / "tls" / "ca.pem").read_bytes())
    entered = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(bundle), str(BUNDLE)]
    return [*entered, *map(str, command)]
