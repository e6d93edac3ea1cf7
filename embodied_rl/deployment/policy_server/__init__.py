"""Policies behind a websocket, by openpi's protocol: server and client. Needs the extra `serve`."""
