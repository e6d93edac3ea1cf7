"""Heads: small models that learn online from a judge's scores, and score every observation in its place."""
