"""Active checks: programs that put load on an idle node and compare what they measure with known values.

A program by itself (`python -m neocloud.fleet.active`), which needs only Python's standard library; checks
that need more are not run without it. docs/rfd/0053-active-checks.md says why it has this shape.
"""
