"""Blobs: immutable bodies by name. `driver.py` says what a driver does, `files.py` keeps them in files."""
