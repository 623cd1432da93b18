"""The node agent: checks of one host, each read by a probe in a process of its own.

A program by itself (`python -m neocloud.fleet.agent`), which needs only Python's standard library where it is
started from its archive (`bundle`). docs/rfd/0055-node-agents-in-the-cloud.md says why it has this shape.
"""
