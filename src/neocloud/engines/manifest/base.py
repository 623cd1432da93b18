# pyright: strict
"""What all manifests have: a kind, names, labels, and a form as a dictionary. Pure."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from neocloud.engines.base import KubernetesObject, Reference
from neocloud.engines.manifest.fields import Document, ManifestError, as_mapping, check_name, decode


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """The metadata of a manifest in its form as a dictionary."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, kw_only=True)
class Manifest(ABC):
    """An object for an engine. It is valid: a wrong field raises ManifestError when it is made."""

    kind: ClassVar[str]
    api_version: ClassVar[str] = "v1"
    has_label_name: ClassVar[bool] = False
    """Whether its name is a single DNS label."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        check_name(self.name, f"{self.kind} name", label=self.has_label_name)
        check_name(self.reference.namespace, f"namespace of {self.kind} {self.name}", label=True)
        try:
            self._check()
        except ManifestError as error:
            raise error.of(f"{self.kind} {self.name}") from error

    @property
    @abstractmethod
    def reference(self) -> Reference: ...

    def to_dict(self) -> KubernetesObject:
        """Return it as Kubernetes writes it."""
        metadata: KubernetesObject = {"name": self.name}
        if self.kind != "Namespace":
            metadata["namespace"] = self.reference.namespace
        for key, value in (("labels", self.labels), ("annotations", self._annotations())):
            if value:
                metadata[key] = dict(value)
        return {"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata, **self._body()}

    @classmethod
    def from_dict(cls, document: Document) -> Self:
        """Read it as Kubernetes writes it. Raises ManifestError naming the first field that is wrong."""
        where = f"A {cls.kind}"
        try:
            metadata = decode(Metadata, as_mapping(document.get("metadata"), "metadata"))
            where = f"{cls.kind} {metadata.name}"
            body = {key: value for key, value in document.items() if key not in _HEAD}
            return cls._of(metadata, body)
        except ManifestError as error:
            raise error.of(where) from error

    @classmethod
    @abstractmethod
    def _of(cls, metadata: Metadata, body: Document) -> Self: ...

    @abstractmethod
    def _body(self) -> Mapping[str, Any]:
        """Everything but its head."""
        ...

    def _annotations(self) -> Mapping[str, str]:
        return {}

    def _check(self) -> None:
        """Raise ManifestError for a field that is wrong."""
        return


@dataclass(frozen=True, kw_only=True)
class Namespaced(Manifest):
    """An object of a namespace."""

    namespace: str

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.namespace, self.name)


_HEAD = ("apiVersion", "kind", "metadata")
