"""A policy behind a websocket."""
