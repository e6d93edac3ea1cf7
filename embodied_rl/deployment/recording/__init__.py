"""Recordings of robots: what was said on their topics, written by a process of its own, and read back as episodes."""
