"""Populations: laws of parameters from noisy, sparse trajectories, by what each subject's own fit shows."""
