"""Symmetric processes that learn together: starting them, what they do together, who failed first."""
