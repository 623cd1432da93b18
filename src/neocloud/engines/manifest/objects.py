"""Small manifests: namespaces, network policies, services, and the files of ConfigMaps and Secrets. Pure."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from neocloud.engines.base import Reference
from neocloud.engines.manifest.base import (
    Document,
    Manifest,
    ManifestError,
    Metadata,
    Namespaced,
    as_list,
    as_mapping,
    check_platform_services,
    decode,
    encode,
    platform_services_annotation,
    read_platform_services,
)

_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_SAME_NAMESPACE: list[object] = [{"podSelector": {}}]


@dataclass(frozen=True, kw_only=True)
class Namespace(Manifest):
    """A border between pods, and what is removed together."""

    kind: ClassVar[str] = "Namespace"
    has_label_name: ClassVar[bool] = True

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.name, self.name)

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        return cls(name=metadata.name, labels=metadata.labels)

    def _body(self) -> Mapping[str, object]:
        return {}


@dataclass(frozen=True, kw_only=True)
class NetworkPolicy(Namespaced):
    """Pods of the namespace may reach each other; `denies_egress`: and begin no connection to elsewhere but
    to platform services."""

    kind: ClassVar[str] = "NetworkPolicy"
    api_version: ClassVar[str] = "networking.k8s.io/v1"

    denies_egress: bool = False
    platform_services: tuple[str, ...] = ()
    """Services that pods on the namespace's own network may reach."""

    def _check(self) -> None:
        check_platform_services(self.platform_services)

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        spec = as_mapping(body.get("spec") or {}, "spec")
        ingress, egress = as_list(spec.get("ingress"), "ingress"), as_list(spec.get("egress"), "egress")
        fits = (
            not spec.get("podSelector")
            and ingress
            and all(rule == {"from": _SAME_NAMESPACE} for rule in ingress)
            and all(rule in ({}, {"to": _SAME_NAMESPACE}) for rule in egress)
        )
        if not fits:
            raise ManifestError(
                "limits more than this engine enforces; it supports only an empty podSelector with ingress "
                "from [{podSelector: {}}], and egress to the same or to anywhere."
            )
        limits_egress = "Egress" in as_list(spec.get("policyTypes"), "policyTypes") or bool(egress)
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            denies_egress=limits_egress and {} not in egress,
            platform_services=read_platform_services(metadata.annotations),
        )

    def _annotations(self) -> Mapping[str, str]:
        return platform_services_annotation(self.platform_services)

    def _body(self) -> Mapping[str, object]:
        spec: dict[str, object] = {
            "podSelector": {},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": _SAME_NAMESPACE}],
        }
        if self.denies_egress:
            spec |= {"policyTypes": ["Ingress", "Egress"], "egress": [{"to": _SAME_NAMESPACE}]}
        return {"spec": spec}


@dataclass(frozen=True, kw_only=True)
class Service(Namespaced):
    """One more name for the pods with these labels."""

    kind: ClassVar[str] = "Service"
    has_label_name: ClassVar[bool] = True

    selector: Mapping[str, str] = field(default_factory=dict[str, str])
    is_headless: bool = False
    """Whether its name leads to the pods themselves, ready or not, where the engine has Services."""

    def selects(self, labels: Mapping[str, str]) -> bool:
        return bool(self.selector) and self.selector.items() <= labels.items()

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        spec = decode(_ServiceSpec, as_mapping(body.get("spec") or {}, "spec"))
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            selector=spec.selector,
            is_headless=spec.cluster_ip == _NO_ADDRESS,
        )

    def _body(self) -> Mapping[str, object]:
        spec = _ServiceSpec(
            cluster_ip=_NO_ADDRESS if self.is_headless else None,
            publish_not_ready_addresses=True if self.is_headless else None,
            selector=self.selector,
        )
        return {"spec": encode(spec)}


_NO_ADDRESS = "None"


@dataclass(frozen=True, kw_only=True)
class _ServiceSpec:
    cluster_ip: str | None = field(default=None, metadata={"key": "clusterIP"})
    publish_not_ready_addresses: bool | None = None
    selector: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class ConfigMap(Namespaced):
    """Files that pods mount or take variables from."""

    kind: ClassVar[str] = "ConfigMap"

    data: Mapping[str, str] = field(default_factory=dict[str, str])
    binary_data: Mapping[str, bytes] = field(default_factory=dict[str, bytes])

    @property
    def contents(self) -> Mapping[str, bytes]:
        return {**self.binary_data, **{key: text.encode() for key, text in self.data.items()}}

    def _check(self) -> None:
        _check_keys(self.contents)

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            data=_texts(body, "data"),
            binary_data=_decoded(body, "binaryData"),
        )

    def _body(self) -> Mapping[str, object]:
        return {"data": dict(self.data)} | (
            {"binaryData": _encoded(self.binary_data)} if self.binary_data else {}
        )


@dataclass(frozen=True, kw_only=True)
class Secret(Namespaced):
    """Files that pods mount or take variables from, and that never reach a disk by the engine."""

    kind: ClassVar[str] = "Secret"

    contents: Mapping[str, bytes] = field(default_factory=dict[str, bytes], repr=False)

    def _check(self) -> None:
        _check_keys(self.contents)

    @classmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self:
        plain = {key: text.encode() for key, text in _texts(body, "stringData").items()}
        return cls(
            name=metadata.name,
            namespace=metadata.namespace,
            labels=metadata.labels,
            contents=_decoded(body, "data") | plain,
        )

    def _body(self) -> Mapping[str, object]:
        return {"type": "Opaque", "data": _encoded(self.contents)}


def _texts(body: Document, field: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in as_mapping(body.get(field) or {}, field).items():
        if not isinstance(value, str):
            raise ManifestError("must be text.", field=f"{field}.{key}")
        found[key] = value
    return found


def _encoded(contents: Mapping[str, bytes]) -> dict[str, str]:
    return {key: base64.b64encode(content).decode() for key, content in contents.items()}


def _decoded(body: Document, field: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for key, value in as_mapping(body.get(field) or {}, field).items():
        try:
            found[key] = base64.b64decode(value if isinstance(value, str) else "?", validate=True)
        except (binascii.Error, ValueError) as error:
            raise ManifestError("is not valid base64.", field=f"{field}.{key}") from error
    return found


def _check_keys(contents: Mapping[str, bytes]) -> None:
    for key in contents:
        if not _KEY.fullmatch(key) or key in (".", ".."):
            raise ManifestError(
                f"{key!r} cannot be a file name; use letters, digits, dots, dashes and underscores.",
                field="key",
            )
