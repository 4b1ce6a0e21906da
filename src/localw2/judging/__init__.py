"""Is it right: diagnosis, the exact test, calibrated intervals, error bounds, rows already seen."""
