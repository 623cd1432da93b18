# pyright: strict
"""What each probe reads. A probe gets a tree and what is expected, and returns what it found."""
