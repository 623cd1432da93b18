"""Neocloud: an AI cloud on your own Linux machines, behind a published API."""

__version__ = "0.1.0"
