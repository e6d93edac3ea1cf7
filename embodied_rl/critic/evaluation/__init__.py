"""Evaluation of scorers: episodes, reports, calibration, server probe, and filtering of demonstrations."""
