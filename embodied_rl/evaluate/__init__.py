"""Measuring a policy: exact episodes, intervals, reports, videos and comparisons."""
