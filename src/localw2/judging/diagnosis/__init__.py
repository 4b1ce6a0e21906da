"""Whether draws can be trusted: checks on held-out rows, in words, as a table and as a plot."""
