"""What is legal for an instance: its shape, its storage, its network, and what may change while it runs."""

from neocloud.services.compute.rules.instance.rules import InstanceRules

__all__ = ["InstanceRules"]
