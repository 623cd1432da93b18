"""Machines that really boot: the launcher's image, the disks, and the engine together."""
