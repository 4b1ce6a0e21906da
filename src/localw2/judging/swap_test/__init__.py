"""An exact test of any sampler: observed and simulated outputs of random rows change places."""
