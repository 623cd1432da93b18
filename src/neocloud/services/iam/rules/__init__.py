# pyright: strict
"""Validation, roles and grants. Pure."""
