"""The command line: turns typed words into a command with its configuration, and runs it."""
