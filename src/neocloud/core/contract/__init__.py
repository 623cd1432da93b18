"""The API contract: messages, methods, annotations, errors, ids, masks, paging, JSON.

Everything generic is driven by it: the server, the command line and the validation of requests. It holds
the published API, read from the pinned `nebius` package, and our own protos. It knows no resource by name,
keeps no state besides the loaded contract, and imports nothing of ours.
"""

from neocloud.core.contract.annotations import (
    FieldAnnotations,
    Nid,
    annotations,
    message_annotations,
    resource_behaviors,
)
from neocloud.core.contract.cache import ContractUnavailable, cache_path
from neocloud.core.contract.clearing import clear_input_only, clear_output_only, clear_secrets, redact
from neocloud.core.contract.errors import (
    ApiError,
    Code,
    already_exists,
    bad_field,
    bad_request,
    bad_state,
    conflict,
    from_status,
    internal,
    not_enough_resources,
    not_found,
    operation_aborted,
    operation_conflict,
    permission_denied,
    quota_failure,
    too_many_requests,
    unauthenticated,
    unavailable,
    unimplemented,
)
from neocloud.core.contract.host_names import api_host_names
from neocloud.core.contract.ids import id_prefix, is_id, new_id
from neocloud.core.contract.json_codec import from_dict, from_json, to_dict, to_json
from neocloud.core.contract.masks import Mask, parse_mask
from neocloud.core.contract.merge import merge_update
from neocloud.core.contract.paging import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    bad_page_token,
    page,
    page_after,
    page_size,
    page_token,
)
from neocloud.core.contract.registry import Rpc, enum, has_package, message, method, methods, pool, services
from neocloud.core.contract.secrets import holds_secrets, keep_secrets, secret_parts
from neocloud.core.contract.well_known import pack, timestamp, to_datetime, unpack

__all__ = [
    "DEFAULT_PAGE_SIZE",
    "MAX_PAGE_SIZE",
    "ApiError",
    "Code",
    "ContractUnavailable",
    "FieldAnnotations",
    "Mask",
    "Nid",
    "Rpc",
    "already_exists",
    "annotations",
    "api_host_names",
    "bad_field",
    "bad_page_token",
    "bad_request",
    "bad_state",
    "cache_path",
    "clear_input_only",
    "clear_output_only",
    "clear_secrets",
    "conflict",
    "enum",
    "from_dict",
    "from_json",
    "from_status",
    "has_package",
    "holds_secrets",
    "id_prefix",
    "internal",
    "is_id",
    "keep_secrets",
    "merge_update",
    "message",
    "message_annotations",
    "method",
    "methods",
    "new_id",
    "not_enough_resources",
    "not_found",
    "operation_aborted",
    "operation_conflict",
    "pack",
    "page",
    "page_after",
    "page_size",
    "page_token",
    "parse_mask",
    "permission_denied",
    "pool",
    "quota_failure",
    "redact",
    "resource_behaviors",
    "secret_parts",
    "services",
    "timestamp",
    "to_datetime",
    "to_dict",
    "to_json",
    "too_many_requests",
    "unauthenticated",
    "unavailable",
    "unimplemented",
    "unpack",
]
