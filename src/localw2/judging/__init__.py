"""Is the fit right? Diagnosis, the exact test, calibrated intervals, error bounds, rows already seen."""
