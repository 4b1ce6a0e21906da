"""An exact test of any sampler, which swaps observed and simulated outputs in random rows."""
