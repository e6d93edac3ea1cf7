"""From the words that were typed to a command with its configuration."""
