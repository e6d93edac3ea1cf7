"""The files of a run on disk, and its progress display."""
