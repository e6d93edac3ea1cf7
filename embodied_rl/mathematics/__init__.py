"""The equations: how a flow draws an action and how likely it was, and what is maximised. Pure tensor functions."""
