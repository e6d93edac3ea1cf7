"""Files that are written atomically or come from strangers, and the signals of a process."""
