# pyright: strict
"""Authentication of callers, and the check of host names."""
