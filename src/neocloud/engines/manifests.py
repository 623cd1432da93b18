"""Reading Kubernetes objects: what every engine must agree on before it touches anything.

Pure. Names are checked here because engines turn them into paths and rule sets; a manifest that passes
`checked` can be trusted not to climb out of a folder. It must not know how any engine works.
"""

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from neocloud.engines.base import EngineError, KubernetesObject, Reference

KINDS = (
    "Namespace",
    "VirtualNetwork",
    "NetworkPolicy",
    "ConfigMap",
    "Secret",
    "PersistentVolumeClaim",
    "Service",
    "Pod",
)
"""Every kind an engine takes, in the order in which it is applied."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_SCALE = {
    None: Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    "Ki": Decimal(1024),
    "M": Decimal(1000) ** 2,
    "Mi": Decimal(1024) ** 2,
    "G": Decimal(1000) ** 3,
    "Gi": Decimal(1024) ** 3,
    "T": Decimal(1000) ** 4,
    "Ti": Decimal(1024) ** 4,
}


def checked_reference(manifest: KubernetesObject) -> Reference:
    """Who this object is; EngineError when its kind or its names cannot be used."""
    kind = manifest.get("kind")
    if kind not in KINDS:
        raise EngineError(f"Kind {kind!r} is not supported; use one of {', '.join(KINDS)}.")
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        raise EngineError(f"A {kind} has no metadata; give it at least a name.")
    name = metadata.get("name")
    check_name(name, f"{kind} name", label=kind in ("Namespace", "Service"))
    if kind != "Namespace":
        check_name(metadata.get("namespace"), f"namespace of {kind} {name}", label=True)
    return Reference.of(manifest)


def check_name(value: object, what: str, *, label: bool = False) -> None:
    """Refuse what is not a DNS name (or a single DNS label), and with it every path trick."""
    pattern = _LABEL if label else _NAME
    if not isinstance(value, str) or not pattern.fullmatch(value) or ".." in value:
        dots = "" if label else ", dots"
        raise EngineError(
            f"The {what} {value!r} is not valid; use lower-case letters, digits{dots} and dashes, "
            f"at most {63 if label else 253} of them, with a letter or digit at both ends."
        )


def check_reference(reference: Reference) -> None:
    if reference.kind not in KINDS:
        raise EngineError(f"Kind {reference.kind!r} is not supported; use one of {KINDS}.")
    check_name(reference.namespace, "namespace", label=True)
    check_name(reference.name, f"{reference.kind} name")


def in_order(objects: Sequence[KubernetesObject]) -> list[KubernetesObject]:
    """The objects by kind, Namespace first and Pod last; otherwise as given."""
    return sorted(objects, key=lambda manifest: KINDS.index(manifest["kind"]))


def fingerprint(spec: Mapping[str, Any]) -> str:
    """Equal for equal specs, whatever the order of their keys."""
    text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def quantity(value: object, what: str) -> Decimal:
    """A Kubernetes quantity such as `500m`, `2` or `4Gi` as a number; never negative."""
    match = _QUANTITY.fullmatch(str(value))
    if not match:
        raise EngineError(f"{what} is {value!r}, which is no quantity; write it like 2, 500m, 4Gi or 1T.")
    try:
        return Decimal(match[1]) * _SCALE[match[2]]
    except InvalidOperation as error:
        raise EngineError(f"{what} is {value!r}, which is too large.") from error


def file_contents(manifest: KubernetesObject) -> dict[str, bytes]:
    """What a ConfigMap or Secret holds, by key, decoded."""
    name = manifest["metadata"]["name"]
    secret = manifest["kind"] == "Secret"
    plain = manifest.get("stringData" if secret else "data") or {}
    encoded = manifest.get("data" if secret else "binaryData") or {}
    contents = {}
    for key, value in encoded.items():
        try:
            contents[key] = base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise EngineError(f"Key {key!r} of {manifest['kind']} {name} is not valid base64.") from error
    for key, value in plain.items():
        if not isinstance(value, str):
            raise EngineError(f"Key {key!r} of {manifest['kind']} {name} must be text.")
        contents[key] = value.encode()
    for key in contents:
        if not _KEY.fullmatch(key) or key in (".", ".."):
            raise EngineError(
                f"Key {key!r} of {manifest['kind']} {name} cannot be a file name; "
                "use letters, digits, dots, dashes and underscores."
            )
    return contents


def check_network_policy(manifest: KubernetesObject) -> None:
    """Accept only what a namespace already means, pods of the same namespace may reach each other, and
    besides that no egress to elsewhere."""
    spec = manifest.get("spec") or {}
    same_namespace = [{"podSelector": {}}]
    fits = (
        not spec.get("podSelector")
        and all(rule == {"from": same_namespace} for rule in spec.get("ingress") or [])
        and all(rule in ({}, {"to": same_namespace}) for rule in spec.get("egress") or [])
        and spec.get("ingress")
    )
    if not fits:
        raise EngineError(
            f"NetworkPolicy {manifest['metadata']['name']} asks for more than this engine enforces; "
            "it takes only an empty podSelector with ingress from [{podSelector: {}}], "
            "and egress to the same or to anywhere."
        )


def denies_egress(policy: KubernetesObject) -> bool:
    """Whether the pods of the policy's namespace may begin connections to each other alone."""
    spec = policy.get("spec") or {}
    is_meant = "Egress" in (spec.get("policyTypes") or ()) or bool(spec.get("egress"))
    return is_meant and {} not in (spec.get("egress") or [])
