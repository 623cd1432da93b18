"""What an operator may set of files and batches, with defaults as OpenAI and its peers have them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectSettings:
    max_file_bytes: int = 5 * 10**9
    max_batch_lines: int = 1_000_000
    max_batch_line_bytes: int = 8 << 20
    max_open_batches: int = 500
    """Of one project."""
    batch_concurrency: int = 32
    """Lines of all batches that are answered at a time while nobody else asks."""
    batch_window_seconds: int = 24 * 3600
