"""The state of pools from the events of their nodes, with snapshots, so that a long log is not read again."""
