"""PostObject: an object as a form of a web page sends it, by the policy that came with the page."""

import hmac
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from neocloud.core.untrusted.xml_elements import parse
from neocloud.object_gateway.s3 import headers as fields
from neocloud.object_gateway.s3 import operations, responses, signature
from neocloud.object_gateway.s3.authorizer import caller_of
from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.context import Response, S3Context
from neocloud.object_gateway.s3.errors import S3Error, invalid
from neocloud.object_gateway.s3.object_settings import read_tags
from neocloud.object_gateway.s3.post_policy import check_policy
from neocloud.object_gateway.s3.xml_out import document, element
from neocloud.object_store.types import Attributes, Expected, ObjectVersion

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD_BYTES = 20 * 1024
"""The limit of all fields before the file together, as in S3."""
MAX_FIELDS = 100
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class FormReader:
    """Fields of a form, and then its file, as they come."""

    def __init__(self, body: Body, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not 1 <= len(boundary) <= 70:
            raise _malformed("The body must be multipart/form-data with a boundary.")
        self._chunks = body.chunks()
        self.fields: dict[str, str] = {}
        """The fields by lower-case name."""
        self.file_name = ""
        self._name: str | None = None
        self._value = bytearray()
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._size = 0
        self._is_in_file = self._is_file_over = self._is_over = False
        self._pieces: list[bytes] = []
        callbacks: MultipartCallbacks = {
            "on_part_begin": self._part_begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_part_data": self._part_data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    async def read_fields(self) -> None:
        """Raises S3Error where the file does not follow."""
        while not (self._is_in_file or self._is_file_over) and await self._feed():
            pass
        if not (self._is_in_file or self._is_file_over):
            raise invalid("POST requires exactly one file upload per request.")

    async def file(self) -> AsyncIterator[bytes]:
        """Raises S3Error where the form ends too early."""
        while True:
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                yield piece
            if self._is_file_over or not await self._feed():
                break
        if self._pieces:
            for piece in self._pieces:
                yield piece
        while await self._feed():
            pass
        if not self._is_over:
            raise S3Error("IncompleteBody", "The form ends before its last boundary.")

    async def _feed(self) -> bool:
        chunk = await anext(self._chunks, None)
        if chunk is None:
            return False
        try:
            self._parser.write(chunk)
        except FormParserError:
            raise _malformed("The body is not a well-formed form.") from None
        return True

    def _part_begin(self) -> None:
        self._name = None
        self._value.clear()

    def _add(self, to: bytearray, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_FIELD_BYTES:
            raise S3Error(
                "MaxPostPreDataLengthExceededError", f"Fields of a form may have {MAX_FIELD_BYTES:,} bytes."
            )
        to += data

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._add(self._header[0], data[start:end])

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._add(self._header[1], data[start:end])

    def _header_end(self) -> None:
        name, value = (bytes(each) for each in self._header)
        self._header = (bytearray(), bytearray())
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode("utf-8", "replace").lower()
        if self._name == "file":
            if self._is_in_file or self._is_file_over:
                raise invalid("POST requires exactly one file upload per request.")
            self._is_in_file = True
            self.file_name = options.get(b"filename", b"").decode("utf-8", "replace")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._is_in_file:
            self._pieces.append(data[start:end])
        elif not self._is_file_over:  # what comes behind the file is ignored, as S3 does
            self._add(self._value, data[start:end])

    def _part_end(self) -> None:
        if self._is_in_file:
            self._is_in_file, self._is_file_over = False, True
        elif not self._is_file_over and self._name is not None:
            if self._name in self.fields or len(self.fields) >= MAX_FIELDS:
                raise _malformed("A field comes twice, or there are too many.")
            try:
                self.fields[self._name] = self._value.decode()
            except UnicodeDecodeError:
                raise _malformed("Fields must be in UTF-8.") from None

    def _end(self) -> None:
        self._is_over = True


async def post_object(context: S3Context) -> Response:
    bucket = context.served
    form = FormReader(context.body, context.request.header("content-type"))
    await form.read_fields()
    key = form.fields.get("key", "").replace("${filename}", form.file_name)
    if not key:
        raise invalid("Bucket POST must contain a field named 'key'.")
    form.fields["key"] = key
    least, most = await _authenticate(context, form.fields)
    await context.require(operations.CREATE, key, bucket)
    context.request = replace(context.request, key=key, headers=_as_headers(form.fields))
    attributes = _attributes(context, form.fields)
    if attributes.retention is not None or attributes.has_legal_hold:
        await context.require(operations.UPDATE, key)
    checksum = fields.checksum(form.fields)
    md5 = form.fields.get("content-md5")
    expected = Expected(
        md5=None if md5 is None else fields.base64_bytes(md5, 16, "Content-MD5", "InvalidDigest"),
        checksum=checksum,
    )
    customer_key = fields.customer_key(context.request)
    size = 0
    async with await context.store.open_write(
        bucket.id,
        None,
        key=key,
        algorithms=[checksum.algorithm] if checksum else [],
        customer_key=customer_key,
    ) as writer:
        async for piece in form.file():
            size += len(piece)
            if size > most:
                raise S3Error("EntityTooLarge", f"The policy allows {most:,} bytes.")
            await writer.write(piece)
        if size < least:
            raise S3Error("EntityTooSmall", f"The policy wants {least:,} bytes at least.")
        version = await writer.commit(key, attributes, expected=expected)
    return _answer(context, form.fields, version)


async def _authenticate(context: S3Context, given: Mapping[str, str]) -> tuple[int, int]:
    """Set the caller; return the least and most bytes of the file. Raises S3Error."""
    if "policy" not in given:
        if "x-amz-signature" in given or "signature" in given:
            raise invalid("Bucket POST must contain a field named 'policy'.")
        return 0, 2**62
    if given.get("x-amz-algorithm") != signature.ALGORITHM:
        raise signature.other_version()
    scope = signature.parse_scope(given.get("x-amz-credential", ""), "InvalidArgument")
    if not given.get("x-amz-date", "").startswith(scope.day):
        raise invalid("x-amz-date is not of the day of the credential.")
    key = await context.dependencies.authorizer.signing_key(scope, context.request.client)
    expected = signature.sign(key.key, given["policy"])
    if not hmac.compare_digest(expected.encode(), given.get("x-amz-signature", "").encode()):
        raise signature.mismatch()
    limits = check_policy(given["policy"], given, context.served.name, context.dependencies.clock.now())
    context.caller = caller_of(key)
    return limits


def _as_headers(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return fields as if they had been headers, which are text of Latin-1."""
    return {name: _CONTROL.sub(" ", value).encode().decode("latin-1") for name, value in given.items()}


def _attributes(context: S3Context, given: Mapping[str, str]) -> Attributes:
    acl = given.get("acl")
    request = context.request
    if acl is not None:
        request = replace(request, headers={**request.headers, "x-amz-acl": acl})
    fields.check_acl(request, context.served)
    attributes = fields.attributes(request)
    if "tagging" in given:
        tags = read_tags(parse(given["tagging"].encode(), "Tagging"), fields.MAX_TAGS)
        attributes = replace(attributes, tags=tags)
    return attributes


def _answer(context: S3Context, given: Mapping[str, str], version: ObjectVersion) -> Response:
    bucket, key = context.served, version.key
    etag, location = f'"{version.etag}"', f"/{bucket.name}/{quote(key, safe='/')}"
    headers = {**responses.written(version), "Location": location}
    target = given.get("success_action_redirect") or given.get("redirect", "")
    if _is_address(target):
        parts = urlsplit(target)
        query = urlencode([*parse_qsl(parts.query), ("bucket", bucket.name), ("key", key), ("etag", etag)])
        return Response(303, {**headers, "Location": parts._replace(query=query).geturl()}, is_counted=True)
    status = given.get("success_action_status", "204")
    if status == "201":
        content = [element("Location", location), element("Bucket", bucket.name)]
        content += [element("Key", key), element("ETag", etag)]
        body = document("PostResponse", *content, namespace="")
        return Response(201, {**headers, "Content-Type": "application/xml"}, body, is_counted=True)
    return Response(200 if status == "200" else 204, headers, is_counted=True)


def _is_address(target: str) -> bool:
    """Return whether this is an address that a browser may be sent to."""
    if not target.isascii() or not target.isprintable():
        return False
    try:
        return urlsplit(target).scheme in ("http", "https")
    except ValueError:
        return False


def _malformed(message: str) -> S3Error:
    return S3Error("MalformedPOSTRequest", message)
