"""Import and export of checkpoints in the formats of other projects, and this library's own policy files."""
