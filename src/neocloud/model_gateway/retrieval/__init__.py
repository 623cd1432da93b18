"""Vector stores, file search, and responses that are stored.

The gateway keeps the rows and calls models; a process of its own holds chunks and vectors and searches them;
each file is read in another one. This package imports nothing, so that these processes start quickly.
"""
