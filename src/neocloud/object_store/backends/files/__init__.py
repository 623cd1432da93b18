# pyright: standard
"""Filesystem buckets: the objects are the files below a directory of a shared filesystem.

Pods and machines write in the directory at the same time, and nothing in it is trusted: names, links, sizes,
attributes.
"""
