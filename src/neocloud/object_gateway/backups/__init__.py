"""Backups of the object store in folders: snapshots that share blobs. `place.py` says how a folder looks."""
