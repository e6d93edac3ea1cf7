"""The console command: one table of what can be typed, and what happens then. Start with `table.py`."""
