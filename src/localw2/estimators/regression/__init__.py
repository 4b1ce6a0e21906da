"""``LocalW2Regressor``: the whole distribution of y at every x."""
