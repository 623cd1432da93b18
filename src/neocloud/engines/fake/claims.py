"""Claims of the fake engine: what they begin with, and who still uses them."""

from neocloud.engines.base import EngineError, Reference
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.world import FakeWorld
from neocloud.engines.manifest import CLAIM, DISK, MACHINE_IMAGE, VolumeClaim
from neocloud.engines.membership import check_unused


def fill_claim(world: FakeWorld, faults: Faults, claim: VolumeClaim) -> None:
    """What a claim begins with: once, when it is new. Raises EngineError."""
    reference, source = claim.reference, claim.data_source
    known = world.objects.get(reference)
    if isinstance(known, VolumeClaim):
        if known.data_source != source:
            raise EngineError(
                f"PersistentVolumeClaim {reference.name} exists with another dataSourceRef; "
                "remove it first, which deletes its data, or choose another name."
            )
    elif source and source.kind == CLAIM:
        if source.claim not in world.objects:
            raise EngineError(f"{source} does not exist; it cannot be copied.")
        world.volumes[reference] = dict(world.volumes.get(source.claim, {}))
    elif source and source.kind == MACHINE_IMAGE:
        if source.name in faults.unknown_images:
            raise EngineError(f"{source} is not known; build or import it first.")
        world.volumes[reference] = {DISK: f"disk of image {source.name}".encode()}


def refuse_if_used(world: FakeWorld, reference: Reference) -> None:
    """Raises EngineError for a claim, network or namespace that a pod which stays still uses."""
    if reference.kind in ("VirtualNetwork", "Namespace"):
        goes_too = reference.namespace if reference.kind == "Namespace" else ""
        staying = (m for m in world.members() if m.pod.namespace != goes_too)
        check_unused(reference.namespace, staying)
    for pod in world.pods.values():
        if pod.reference.namespace == reference.namespace and reference.kind == "Namespace":
            continue  # it goes too
        for claim in pod.manifest.mounted_claims:
            is_meant = claim == reference or (
                reference.kind == "Namespace" and claim.namespace == reference.name
            )
            if is_meant:
                raise EngineError(
                    f"PersistentVolumeClaim {claim.name} is in use by pod {pod.reference.name}; "
                    "remove that pod first."
                )
