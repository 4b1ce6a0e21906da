"""``RandomCoefficientRegressor``: linear regression whose coefficients vary from row to row."""
