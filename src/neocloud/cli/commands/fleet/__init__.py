"""`neo fleet`: health of nodes, checks, faults and planning. `group` is the table of its commands."""
