"""A client of S3 as the type checker sees it, with the calls that Neocloud makes.

It is light to import, unlike the client itself.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

Answer: TypeAlias = Mapping[str, Any]
"""An answer of S3, by botocore's names."""


class Call(Protocol):
    def __call__(self, **parameters: object) -> Answer: ...


if TYPE_CHECKING:
    from botocore.client import BaseClient

    class S3(BaseClient):
        """botocore adds these methods at run time."""

        abort_multipart_upload: Call
        complete_multipart_upload: Call
        copy_object: Call
        create_multipart_upload: Call
        delete_object: Call
        delete_objects: Call
        get_object: Call
        head_object: Call
        list_buckets: Call
        list_objects_v2: Call
        put_object: Call
        upload_part: Call

        def generate_presigned_url(
            self, method: str, parameters: Mapping[str, str], *, ExpiresIn: int
        ) -> str: ...

else:
    S3 = object
