"""Network, sampler and critic as one Actor; the embodiment that normalises; the files they are kept in."""
