"""Two models asked the same through an OpenAI-compatible API, and compared: the work behind `neo evaluate`.

The report has the keys of the recipe that evaluates inside a job (recipes/evaluator.py); a test holds both to
the same numbers. It needs no tokenizer: the engine says how it cut the text.
"""
