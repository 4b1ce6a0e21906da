"""Tables in files, as data frames."""
