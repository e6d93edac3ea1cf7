"""How a judge is examined: which episodes it is shown, the page about it, what its server can do, and how fast."""
