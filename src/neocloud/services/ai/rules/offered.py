"""What of the contract is not offered here, said by the name of its field: refused, never dropped. Pure."""

from collections.abc import Iterable
from typing import Any

from neocloud.core.kind import Violation

_NO_REGISTRY = "images come from this machine, not from a registry; leave it out"
_NO_VAULT = "there is no MysteryBox here; give the value itself"
_WHY = {
    "registry_credentials": _NO_REGISTRY,
    "auth_token": "nothing stands before the port to check a token; let your program check it",
    "auth_token_mysterybox_secret": _NO_VAULT,
    "ssh_authorized_keys": "there is no machine around the container to sign in to; leave it out",
}


def not_offered(spec: Any) -> Iterable[Violation]:
    for field, why in _WHY.items():
        descriptor = spec.DESCRIPTOR.fields_by_name.get(field)
        if descriptor is None:
            continue
        value = getattr(spec, field)
        is_given = spec.HasField(field) if descriptor.message_type else bool(value)
        if is_given:
            yield Violation(f"spec.{field}", why)
    for index, variable in enumerate(spec.environment_variables):
        if variable.HasField("mysterybox_secret"):
            yield Violation(f"spec.environment_variables[{index}].mysterybox_secret", _NO_VAULT)
    for index, volume in enumerate(spec.volumes):
        if volume.HasField("s3_config"):
            yield Violation(
                f"spec.volumes[{index}].s3_config", "there are no buckets here; name a filesystem"
            )
    yield from _pricing(spec)


def _pricing(spec: Any) -> Iterable[Violation]:
    """That the model fits spec.preemptible is checked by the contract itself."""
    if spec.pricing_model.WhichOneof("model") == "spot_pricing_policy":
        yield Violation("spec.pricing_model", "pricing policies are for instances; follow the spot price")
