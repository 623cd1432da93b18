"""The paths of the protocol. The first part of a name is a registry, the rest a repository in it."""

import re
from dataclasses import dataclass
from enum import StrEnum

from neocloud.core import digests
from neocloud.object_gateway.oci.errors import RegistryError

MAX_NAME = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"{_PART}(?:/{_PART})+")
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_ANY_DIGEST = re.compile(r"[a-z0-9]+(?:[+._-][a-z0-9]+)*:[a-zA-Z0-9=_-]+")
_UPLOAD = re.compile(r"[0-9a-f]{32}")


class Endpoint(StrEnum):
    BASE = "base"
    TOKEN = "token"  # nosec B105
    UPLOADS = "uploads"
    UPLOAD = "upload"
    BLOB = "blob"
    MANIFEST = "manifest"
    TAGS = "tags"
    REFERRERS = "referrers"


@dataclass(frozen=True)
class Path:
    endpoint: Endpoint
    name: str = ""
    """The name of the repository, with its registry: "e00abc/team/app"."""
    reference: str = ""
    """A digest, a tag, or the id of an upload, as the client wrote it."""

    @property
    def registry(self) -> str:
        return self.name.partition("/")[0]

    @property
    def repository(self) -> str:
        return self.name.partition("/")[2]

    @property
    def digest(self) -> str:
        return checked_digest(self.reference)

    @property
    def tag(self) -> str:
        """Raises RegistryError."""
        return checked_tag(self.reference)

    @property
    def manifest(self) -> str:
        """The digest or the tag. Raises RegistryError."""
        return self.digest if ":" in self.reference else self.tag


_PATTERNS = (
    (re.compile(r"/v2/(.+)/blobs/uploads/?"), Endpoint.UPLOADS),
    (re.compile(r"/v2/(.+)/blobs/uploads/([^/]+)"), Endpoint.UPLOAD),
    (re.compile(r"/v2/(.+)/blobs/([^/]+)"), Endpoint.BLOB),
    (re.compile(r"/v2/(.+)/manifests/([^/]+)"), Endpoint.MANIFEST),
    (re.compile(r"/v2/(.+)/tags/list"), Endpoint.TAGS),
    (re.compile(r"/v2/(.+)/referrers/([^/]+)"), Endpoint.REFERRERS),
)
_MAX_PATH = 1024


def parse(raw: str) -> Path:
    """Nothing is decoded: no name, tag or digest has a character that needs it. Raises RegistryError."""
    if raw in ("/v2", "/v2/"):
        return Path(Endpoint.BASE)
    if raw == "/v2/token":
        return Path(Endpoint.TOKEN)
    for pattern, endpoint in _PATTERNS if len(raw) <= _MAX_PATH else ():
        found = pattern.fullmatch(raw)
        if found is not None:
            reference = found[2] if endpoint not in (Endpoint.UPLOADS, Endpoint.TAGS) else ""
            if endpoint is Endpoint.UPLOAD and not _UPLOAD.fullmatch(reference):
                raise RegistryError(404, "BLOB_UPLOAD_UNKNOWN", "The upload does not exist.")
            return Path(endpoint, checked_name(found[1]), reference)
    raise RegistryError(404, "NAME_UNKNOWN", "There is nothing at this path.")


def checked_name(name: str) -> str:
    """Raises RegistryError."""
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise RegistryError(
            400,
            "NAME_INVALID",
            "A name is <registry>/<repository>, of lower-case letters and digits with '.', '_', '-' and '/'"
            f" between them, and {MAX_NAME} characters at most.",
        )
    return name


def checked_tag(tag: str) -> str:
    """Raises RegistryError."""
    if not _TAG.fullmatch(tag):
        raise RegistryError(400, "TAG_INVALID", "A tag has up to 128 letters, digits, '_', '.' and '-'.")
    return tag


def checked_digest(digest: str) -> str:
    """Raises RegistryError."""
    if digests.is_digest(digest):
        return digest
    is_other = _ANY_DIGEST.fullmatch(digest) and digests.algorithm_of(digest) not in digests.ALGORITHMS
    taken = " and ".join(digests.ALGORITHMS)
    why = f"of another algorithm than {taken}, which is not served here" if is_other else "malformed"
    raise RegistryError(400, "DIGEST_INVALID", f"The digest is {why}.")
