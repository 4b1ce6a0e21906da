"""Outputs that are fields: curves, images, solutions of equations on a grid."""
