"""Validation, roles and grants. Pure."""
