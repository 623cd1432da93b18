"""Active checks: programs that run on idle nodes, their runs as a log, and what they say of each node."""
