"""Numbers and categories together as outputs: their joint distribution at every x."""
