"""The evaluation of policies: exact episodes, intervals, reports, videos and comparisons."""
