"""How a judge is examined: which episodes it is shown, the page about it, and what its server can do."""
