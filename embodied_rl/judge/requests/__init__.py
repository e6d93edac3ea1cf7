"""Asks scorers without waiting: the queue, attempts, and limits that one run shares."""
