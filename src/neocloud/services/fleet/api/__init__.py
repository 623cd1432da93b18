"""The RPCs of nodes, repairs, incidents, verdicts and checks; one file for each service of the contract."""
