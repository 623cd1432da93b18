"""Tests of the command line, against a small in-process cloud built on the contract."""
