"""Where: which rows are near each other. Norms, neighbourhoods of rows, and the choice of their size."""
