"""Pushes to registries of the cloud: models, and the cloud's own images."""
