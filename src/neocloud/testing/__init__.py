"""What users of Neocloud test with too: a clock that jumps, suites that a store or engine must pass."""
