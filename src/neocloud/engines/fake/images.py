"""Pulled images of the fake engine: their names and settings. Nothing is fetched."""

from collections.abc import Sequence

from neocloud.engines.base import EngineError
from neocloud.engines.fake.faults import Faults
from neocloud.engines.fake.world import FakeContainer, FakeWorld
from neocloud.engines.images import PULLED, ImagePull, ImageSettings
from neocloud.engines.manifest import Pod


class FakeImages:
    """The part of FakeEngine that pulls and removes images."""

    world: FakeWorld
    faults: Faults

    async def pull_image(self, pull: ImagePull) -> None:
        self.faults.check_available()
        if self.faults.pull_gate is not None:
            await self.faults.pull_gate.wait()
        if self.faults.pull_error is not None:
            raise self.faults.pull_error
        self.world.images[pull.image] = pull.settings
        self.world.save()

    async def pulled_images(self) -> frozenset[str]:
        self.faults.check_available()
        return frozenset(self.world.images)

    async def remove_image(self, image: str) -> None:
        self.faults.check_available()
        for pod in self.world.pods.values():
            if image in pod.manifest.images:
                raise EngineError(f"Image {image} is in use by pod {pod.reference.name}.")
        self.world.images.pop(image, None)
        self.world.save()


def require_images(world: FakeWorld, faults: Faults, pod: Pod) -> None:
    """Raises EngineError for an image that is not there."""
    unknown = {image for image in pod.images if image.startswith(PULLED) and image not in world.images}
    for image in unknown | (pod.images & set(faults.unknown_images)):
        raise EngineError(f"Image {image} is not known; build, import or pull it first.")


def program_of(world: FakeWorld, container: FakeContainer) -> Sequence[str]:
    """Return the command line of a container, which its image may define."""
    manifest = container.manifest
    settings = world.images.get(manifest.image, ImageSettings())
    own = () if manifest.command else settings.command
    return [*(manifest.command or settings.entrypoint), *(manifest.args or own)]
