"""Tests of Neocloud, in folders by tier: `fast`, `real`, `e2e`, `long` (tests/tiers.py)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository's root."""
