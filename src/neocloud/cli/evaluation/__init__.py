"""Comparison of two models through an OpenAI-compatible API, for `neo evaluate`.

The report has the keys of the recipe that evaluates inside a job (recipes/evaluator.py); a test requires the
same numbers of both. It needs no tokenizer: the model server returns the tokens of the text.
"""
