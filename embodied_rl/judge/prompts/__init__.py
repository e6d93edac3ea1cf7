"""Which questions a vision-language model is asked about progress, and how its answers are read."""
