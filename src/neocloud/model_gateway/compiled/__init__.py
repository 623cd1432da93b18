"""Compilations of a model server for a caller: their bounds and their turns.

A regular expression, a grammar, a JSON schema, a list of choices and the schemas of tools become automata
over the whole vocabulary before the first token. A few kilobytes can take minutes of processor time and
gigabytes of memory there, in a process that all callers of a model share.
"""
