"""Engines run workloads. `base` is the border; each folder beside it is one engine."""
