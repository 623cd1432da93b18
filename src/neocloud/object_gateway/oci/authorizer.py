"""Authentication and authorization of requests to the registry. Nothing is open to everybody.

Clients sign in at the token endpoint, with a token of the cloud (user `iam`) or an access key and its secret,
and get a token of the registry for the names and actions that they ask for. The control plane pulls images
for endpoints and jobs with keys that are limited to one repository.
"""

import base64
import binascii
import hmac
from dataclasses import dataclass, replace
from datetime import UTC

import orjson

from neocloud.data_plane.access_keys import TEMPORARY_KEY_PREFIX, KeyLimit, repository_limit
from neocloud.object_gateway.oci import paths
from neocloud.object_gateway.oci.context import (
    JSON,
    RegistryContext,
    RegistryDependencies,
    RegistryRequest,
    parsed_form,
)
from neocloud.object_gateway.oci.errors import RegistryError, denied
from neocloud.object_gateway.oci.mirror import MirroredRepository
from neocloud.object_gateway.oci.tokens import LIFETIME, MAX_SCOPES, Token
from neocloud.object_gateway.s3 import signature
from neocloud.object_gateway.s3.authorizer import Caller, caller_of
from neocloud.object_gateway.s3.body import Body
from neocloud.object_gateway.s3.context import Response
from neocloud.object_gateway.s3.errors import S3Error
from neocloud.object_store.errors import NoSuchBucket
from neocloud.object_store.types import Bucket, BucketKind

IAM_USER = "iam"
PERMISSIONS = {
    "pull": "registry.images.pull",
    "push": "registry.images.push",
    "delete": "registry.images.delete",
}
"""Permissions by the action that scopes name."""
MAX_FORM_BYTES = 64 * 1024
_MAX_USER, _MAX_PASSWORD = 640, 16 * 1024


@dataclass(frozen=True)
class Credentials:
    user: str
    password: str


class RegistryAuthorizer:
    def __init__(self, dependencies: RegistryDependencies) -> None:
        self._dependencies = dependencies

    async def give_token(self, request: RegistryRequest, body: Body) -> Response:
        """Serve the token endpoint: GET with Basic authentication, or POST of a form. Raises RegistryError,
        S3Error."""
        form = list(request.query)
        if request.method == "POST":
            form = parsed_form(await _read_form(body))
            credentials = _form_credentials(dict(form))
        elif request.method == "GET":
            credentials = _basic_credentials(request.header("authorization"))
        else:
            raise RegistryError(405, "UNSUPPORTED", "A token is asked for with GET or POST.")
        caller = await self._signed_in(credentials, request) if credentials else None
        if caller is None:
            headers = (
                {"WWW-Authenticate": f'Basic realm="{request.service}"'} if request.method == "GET" else {}
            )
            raise RegistryError(401, "UNAUTHORIZED", _HOW_TO_SIGN_IN, headers=headers)
        now = self._dependencies.clock.now()
        scopes = _scopes([value for name, value in form if name == "scope"])
        token = Token(
            *(caller.subject_id, caller.subject_name, caller.tenant_id, caller.aws_access_key_id),
            *(caller.proof, now + LIFETIME, scopes),
        )
        signed = self._dependencies.signer.sign(token)
        answer = {
            "token": signed,
            "access_token": signed,
            "expires_in": int(LIFETIME.total_seconds()),
            "issued_at": f"{now.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
        }
        return Response(200, {"Content-Type": JSON, "Cache-Control": "no-store"}, orjson.dumps(answer))

    async def _signed_in(self, given: Credentials, request: RegistryRequest) -> Caller | None:
        if len(given.user) > _MAX_USER or len(given.password) > _MAX_PASSWORD:
            return None
        if given.user == IAM_USER:
            owner = await self._dependencies.authorizer.token_owner(given.password, request.client)
            if owner is None:
                return None
            return Caller(owner.subject_id, owner.subject_name, tenant_id=owner.tenant_id, proof=owner.proof)
        caller = await self._key_owner(given, request.client)
        if caller is not None and caller.limit is None and given.user.startswith(TEMPORARY_KEY_PREFIX):
            raise RegistryError(401, "UNAUTHORIZED", f"Temporary keys are for S3 alone. {_HOW_TO_SIGN_IN}")
        return caller

    async def _key_owner(self, given: Credentials, client: str) -> Caller | None:
        """Compare what is derived from the secrets: the control plane keeps the secret to itself."""
        scope = self._scope(given.user)
        try:
            key = await self._dependencies.authorizer.signing_key(scope, client)
            shown = signature.signing_key(given.password, scope.day, scope.region)
        except (S3Error, UnicodeEncodeError) as error:
            if isinstance(error, S3Error) and error.code != "InvalidAccessKeyId":
                raise
            return None
        return caller_of(key) if hmac.compare_digest(shown, key.key) else None

    def _scope(self, aws_access_key_id: str) -> signature.Scope:
        day = f"{self._dependencies.clock.now().astimezone(UTC):%Y%m%d}"
        return signature.Scope(aws_access_key_id, day, self._dependencies.region)

    async def caller(self, request: RegistryRequest, action: str) -> tuple[Caller, Token]:
        """Return whose token of the registry a request has. Raises RegistryError, S3Error."""
        kind, _, text = request.header("authorization").partition(" ")
        if kind.lower() != "bearer":
            raise unauthorized(request, action)
        token = self._dependencies.signer.read(text.strip(), self._dependencies.clock.now())
        if token is None:
            raise unauthorized(request, action, "invalid_token")
        if not token.aws_access_key_id:
            found = Caller(token.subject_id, token.subject_name, tenant_id=token.tenant_id, proof=token.proof)
            return found, token
        try:
            key = await self._dependencies.authorizer.signing_key(
                self._scope(token.aws_access_key_id), request.client
            )
        except S3Error as error:
            if error.code != "InvalidAccessKeyId":
                raise
            raise unauthorized(request, action, "invalid_token") from error
        return caller_of(key), token

    async def registry(self, request: RegistryRequest, caller: Caller, token: Token, action: str) -> Bucket:
        """Return the registry that a request names. Raises RegistryError."""
        if not token.allows(request.path.name, action):
            raise unauthorized(request, action, "insufficient_scope")
        found = await self.find(caller, request.path.registry, request.path.repository, action)
        if found is None:
            raise denied()
        return found

    async def find(self, caller: Caller, registry: str, repository: str, action: str) -> Bucket | None:
        """Return a registry in which the caller may do this to a repository."""
        try:
            found = self._dependencies.store.bucket(f"v2/{registry}", BucketKind.REGISTRY)
        except NoSuchBucket:
            return None
        if caller.limit is not None and not _is_within(caller.limit, found, repository, action):
            return None
        permissions = await self._dependencies.authorizer.permissions(replace(caller, limit=None), found.id)
        return found if PERMISSIONS[action] in permissions else None


async def mirrored(context: RegistryContext) -> MirroredRepository | None:
    """Return what the repository mirrors, for a caller who may bring something in: it is stored and billed
    as if they had pushed it."""
    path, dependencies = context.path, context.dependencies
    place = dependencies.mirrors.place(context.registry.id, context.repository)
    if place is None:
        return None
    authorizer = RegistryAuthorizer(dependencies)
    return place if await authorizer.find(context.caller, path.registry, path.repository, "push") else None


_HOW_TO_SIGN_IN = (
    "Sign in as the user iam with an access token as the password, or with an access key and its secret."
)


def unauthorized(request: RegistryRequest, action: str, why: str = "") -> RegistryError:
    """Tell the client where to get a token, and for what."""
    parts = [f'realm="{request.origin}/v2/token"', f'service="{request.service}"']
    if request.path.name:
        actions = "pull,push" if action == "push" else action
        parts.append(f'scope="repository:{request.path.name}:{actions}"')
    parts += [f'error="{why}"'] if why else []
    headers = {"WWW-Authenticate": f"Bearer {','.join(parts)}"}
    return RegistryError(401, "UNAUTHORIZED", _HOW_TO_SIGN_IN, headers=headers)


def _is_within(limit: KeyLimit, registry: Bucket, repository: str, action: str) -> bool:
    """Return whether a limited key is for this: it pulls one repository, and does nothing else."""
    is_same = limit.bucket_id == registry.id and limit.prefix == repository_limit(repository)
    return action == "pull" and is_same and not (limit.writes or limit.deletes)


async def _read_form(body: Body) -> bytes:
    found = bytearray()
    async for piece in body.raw():
        found += piece
        if len(found) > MAX_FORM_BYTES:
            raise RegistryError(413, "SIZE_INVALID", f"The form may have {MAX_FORM_BYTES:,} bytes.")
    return bytes(found)


def _form_credentials(form: dict[str, str]) -> Credentials | None:
    kind = form.get("grant_type")
    if kind == "password":
        return Credentials(form.get("username", ""), form.get("password", ""))
    if kind == "refresh_token":  # what a client keeps in place of a password: a token of the cloud
        return Credentials(IAM_USER, form.get("refresh_token", ""))
    raise RegistryError(400, "UNSUPPORTED", "grant_type must be password or refresh_token.")


def _basic_credentials(header: str) -> Credentials | None:
    kind, _, text = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(text.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return Credentials(user, password) if colon else None


def _scopes(given: list[str]) -> dict[str, frozenset[str]]:
    """Return the actions that are asked for, by name. Scopes of other kinds give nothing."""
    found: dict[str, frozenset[str]] = {}
    for scope in [each for text in given for each in text.split(" ") if each][:MAX_SCOPES]:
        kind, _, rest = scope.partition(":")
        name, _, actions = rest.rpartition(":")
        if kind.partition("(")[0] != "repository":
            continue
        asked = {each for each in actions.split(",") if each == "*" or each in PERMISSIONS}
        try:
            paths.checked_name(name)
        except RegistryError:
            continue
        found[name] = found.get(name, frozenset()) | asked
    return found
