"""I/O-aware batch jobs on one multi-socket Linux server."""

__version__ = "0.1.0"
