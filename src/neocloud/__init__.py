# pyright: standard
"""Neocloud: an AI cloud on your own Linux machines, behind a published API."""

__version__ = "0.3.0.dev0"
