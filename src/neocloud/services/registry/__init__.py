"""The container registry: registries and the images in them, which the object gateway keeps and serves."""

from neocloud.core.service import Service
from neocloud.services.registry.api import KINDS, METHODS
from neocloud.services.registry.image_pulls import StoreImagePulls
from neocloud.services.registry.public import ImagePulls
from neocloud.services.registry.reconcile import reconcilers
from neocloud.services.registry.types import (
    IMAGE_PERMISSIONS,
    REGISTRY,
    Artifacts,
    VulnerabilityReports,
    gateway_bucket,
)
from neocloud.services.storage.public import BucketSource, BucketSources

SERVICE = Service(
    name="registry",
    kinds=KINDS,
    methods=METHODS,
    reconcilers=reconcilers,
    provides={
        BucketSources: lambda dependencies: BucketSources(
            (BucketSource(REGISTRY, IMAGE_PERMISSIONS, gateway_bucket),)
        ),
        ImagePulls: StoreImagePulls,
    },
)

__all__ = ["REGISTRY", "SERVICE", "Artifacts", "VulnerabilityReports"]
