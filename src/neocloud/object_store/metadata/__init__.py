# pyright: standard
"""The metadata of the object store in SQLite. schema.py has the tables, database.py reads and writes them in
transactions; the other files are what is done within a transaction."""
