"""Backups of a cloud's state: written while it runs, restored into an empty state folder."""
