"""The pod of a machine that runs: its spec stays as it was at the start, its attached disks change. Pure.

The boot disk is a volume of the spec. The other disks are attached, so that they come and go while the
machine runs. Pods that earlier releases started have all disks in their spec, and no place for more.
"""

import json

from neocloud.engines.base import KubernetesObject
from neocloud.engines.manifest import ATTACHED_ANNOTATION, ATTACHED_VOLUME, CLAIMS_ANNOTATION, Pod
from neocloud.services.compute.types import DISK_ID_PREFIX


def running_pod(pod: Pod, started: KubernetesObject) -> Pod:
    """Return the pod with the spec of its start, and with what may change while it runs as in `pod`."""
    document = pod.to_dict()
    annotations = document["metadata"].setdefault("annotations", {})
    claims = json.loads(annotations.get(CLAIMS_ANNOTATION, "{}"))
    for name in _claim_volumes(started):
        if name.startswith(f"{DISK_ID_PREFIX}-"):
            claims[name] = name  # also of a disk that was detached since
    annotations[CLAIMS_ANNOTATION] = json.dumps(claims, sort_keys=True)
    if not can_attach(started):
        annotations.pop(ATTACHED_ANNOTATION, None)
    return Pod.from_dict({**document, "spec": started})


def can_attach(started: KubernetesObject) -> bool:
    """Return whether disks can be attached to a machine whose pod was started with this manifest; before the
    start, all can.
    """
    return not started or any(volume["name"] == ATTACHED_VOLUME for volume in started["volumes"])


def folder_at_start(started: KubernetesObject, disk_id: str) -> str:
    """Return the folder of a disk that is a volume of the spec; "" for other disks."""
    volume = _claim_volumes(started).get(disk_id)
    mounts = started["containers"][0]["volumeMounts"] if volume else ()
    return next((mount["mountPath"] for mount in mounts if mount["name"] == volume), "")


def _claim_volumes(started: KubernetesObject) -> dict[str, str]:
    """Return the volumes of the spec by the names of their claims."""
    claims = {
        volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName")
        for volume in started.get("volumes", ())
    }
    return {claim: name for name, claim in claims.items() if claim}
