"""The operations of S3 that the object gateway asks for, on one bucket. Each raises EndpointError."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from neocloud.s3_client import answers
from neocloud.s3_client.answers import ListedPart, Page
from neocloud.s3_client.http import Answer, Body, HttpEndpoint
from neocloud.s3_client.types import EndpointError

_MOST_PART_PAGES = 20
_NO_TAGS = frozenset((400, 403, 405, 501))


class S3Bucket:
    def __init__(self, http: HttpEndpoint) -> None:
        self._http = http
        self.endpoint = http.endpoint

    async def close(self) -> None:
        await self._http.close()

    async def list(self, prefix: str, start_after: str, token: str) -> Page:
        """Return a page of the objects after a key, or of the list that a token continues."""
        query = [("list-type", "2"), ("encoding-type", "url"), ("prefix", prefix)]
        query += [("continuation-token", token)] if token else []
        query += [("start-after", start_after)] if start_after and not token else []
        async with self._http.request("GET", query=query) as answer:
            body = await answer.read()
        return await asyncio.to_thread(answers.page, body, prefix, self.endpoint.origin)

    async def head(self, key: str) -> Mapping[str, str] | None:
        """Return the headers of an object; None where there is none."""
        try:
            async with self._http.request("HEAD", key) as answer:
                return answer.headers
        except EndpointError as error:
            if error.status == 404:
                return None
            raise

    async def tags(self, key: str) -> str:
        """Return the tags of an object as the value of `x-amz-tagging`; "" where it has none, or where the
        endpoint has no tags or does not show them to this access key."""
        try:
            async with self._http.request("GET", key, [("tagging", "")]) as answer:
                return answers.tags(await answer.read(), self.endpoint.origin)
        except EndpointError as error:
            if error.status in _NO_TAGS:
                return ""
            raise

    def get(
        self, key: str, etag: str, first: int | None = None, last: int | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Return an object while it has this ETag, or bytes of it, both ends included."""
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        if first is not None:
            headers["Range"] = f"bytes={first}-{last}"
        return self._http.request("GET", key, headers=headers)

    async def put(self, key: str, body: Body, length: int, headers: Mapping[str, str]) -> Mapping[str, str]:
        async with self._http.request("PUT", key, headers=headers, body=body, length=length) as answer:
            await answer.read()
            return answer.headers

    async def delete(self, key: str, etag: str = "") -> None:
        """Delete an object; with an ETag, only if it still has that."""
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        async with self._http.request("DELETE", key, headers=headers) as answer:
            await answer.read()

    async def create_upload(self, key: str, headers: Mapping[str, str]) -> str:
        async with self._http.request("POST", key, [("uploads", "")], headers) as answer:
            return answers.upload_id(await answer.read(), self.endpoint.origin)

    async def put_part(
        self, key: str, upload_id: str, number: int, body: AsyncIterator[bytes], length: int
    ) -> str:
        """Return the ETag."""
        query = [("partNumber", str(number)), ("uploadId", upload_id)]
        async with self._http.request("PUT", key, query, body=body, length=length) as answer:
            await answer.read()
            return answer.headers.get("etag", "").strip('"')

    async def list_parts(self, key: str, upload_id: str) -> Sequence[ListedPart]:
        found: list[ListedPart] = []
        marker = 0
        for _ in range(_MOST_PART_PAGES):
            query = [("uploadId", upload_id), ("part-number-marker", str(marker))]
            async with self._http.request("GET", key, query) as answer:
                page, marker = answers.parts(await answer.read(), self.endpoint.origin)
            found += page
            if not marker:
                break
        return found

    async def complete_upload(
        self, key: str, upload_id: str, etags: Sequence[str], headers: Mapping[str, str]
    ) -> None:
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{_escaped(etag)}</ETag></Part>"
            for number, etag in enumerate(etags, 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        async with self._http.request("POST", key, [("uploadId", upload_id)], headers, body) as answer:
            error = answers.completion_error(await answer.read(), self.endpoint.origin)
        if error is not None:
            raise error

    async def abort_upload(self, key: str, upload_id: str) -> None:
        try:
            async with self._http.request("DELETE", key, [("uploadId", upload_id)]) as answer:
                await answer.read()
        except EndpointError as error:
            if error.status != 404:
                raise


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
