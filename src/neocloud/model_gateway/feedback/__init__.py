"""Ratings of answers: counted for releases, and stored in `<home>/gateway/feedback.db`.

Only the caller who got an answer rates it. Texts are stored only where that caller consents.
"""
