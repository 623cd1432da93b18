"""Models that come with Neocloud: made on this machine from a package whose hash the lock names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neocloud.cli.machine import images
from neocloud.cli.output import say
from neocloud.cli.progress import stage
from neocloud.cli.resources.lookup import ProjectClient
from neocloud.client.errors import ClientError


@dataclass(frozen=True)
class OfferedModel:
    """A model that `neo model add NAME` needs no source for."""

    image: str
    """The image that it is made as; the name by which it is asked for, too."""
    title: str
    license: str
    """SPDX identifier."""
    description: str
    questions: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Questions that it answers right, each with words of which the answer has one; none where it writes no
    text."""


CATALOGUE = {
    images.SMOLLM2: OfferedModel(
        images.SMOLLM2,
        "SmolLM2-135M-Instruct",
        "Apache-2.0",
        "SmolLM2-135M-Instruct by Hugging Face, for English; weights of 4 bits in bf16.",
        {
            "What is the capital of France?": ["Paris"],
            "What color is the sky on a clear day?": ["blue"],
            "How many days are in a week?": ["7"],
            "What is the opposite of hot?": ["cold"],
        },
    ),
    images.MINILM: OfferedModel(
        images.MINILM,
        "all-MiniLM-L6-v2",
        "Apache-2.0",
        "all-MiniLM-L6-v2 by sentence-transformers: vectors of 384 numbers for English texts.",
    ),
}


def catalogue_folder(cloud: ProjectClient, offered: OfferedModel) -> Path:
    """Return the folder of the model on this machine, after making it where it is not there yet.

    Raises ClientError where the cloud runs on another machine or the model cannot be made.
    """
    name = offered.image
    if not cloud.profile.home:
        raise ClientError(
            "INVALID_ARGUMENT",
            f"{name} is made on the cloud's own machine, and this profile is for a cloud on another one",
            f"Run `neo model add {name}` there, or name a folder, a bucket or an id of the hub",
        )
    home = Path(cloud.profile.home)
    with stage(f"Model {name}") as progress:
        images.build_image(name, home, progress)
    say(f"{offered.title}, license {offered.license}.")
    return home / "images" / name / "model"
