"""Tools for tests, also those of users: a clock that jumps, suites that a store or engine must pass."""
