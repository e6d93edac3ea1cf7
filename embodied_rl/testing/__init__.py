"""Tools for authors of plug-ins: contract checks to call in their tests, and small fakes to test against."""
