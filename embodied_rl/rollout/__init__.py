"""Collecting experience: which episode runs where, the buffer it goes to, and the loop that fills it."""
