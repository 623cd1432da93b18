"""What an operator may set of files and batches, with defaults as OpenAI and its peers have them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ObjectSettings:
    max_file_bytes: int = 5 * 10**9
    max_batch_lines: int = 1_000_000
    max_batch_line_bytes: int = 8 << 20
    max_open_batches: int = 500
    """Of one project."""
    max_project_files: int = 10_000
    max_project_bytes: int = 500 * 10**9
    """Bytes of all files of one project, with the inputs and answers that its open batches keep."""
    min_free_bytes: int = 2 << 30
    """Uploads are refused, and batches pause, while the disk has less."""
    batch_concurrency: int = 32
    """Lines of all batches that are answered at a time while nobody else asks."""
    batch_window_seconds: int = 24 * 3600
