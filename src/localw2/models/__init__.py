"""What: random maps ``fhat(x, omega)``. Linear maps, networks, laws of named parameters, ODEs."""
