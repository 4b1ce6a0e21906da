"""Random models yhat = fhat(x, omega): linear, networks, and your own."""
