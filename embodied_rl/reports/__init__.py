"""The results of evaluations: statistics, reports, their pairing and comparison, and the pages that show them."""
