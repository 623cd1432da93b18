"""Clients that nobody here wrote, run unmodified against a Neocloud."""
