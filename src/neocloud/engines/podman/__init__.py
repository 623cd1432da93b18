"""Runs workloads on one Linux machine with Podman."""

from neocloud.engines.podman.engine import DEFAULT_POOL, PodmanEngine

__all__ = ["DEFAULT_POOL", "PodmanEngine"]
