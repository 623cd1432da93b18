"""Probes: each gets a tree and the expected values, and returns its readings."""
