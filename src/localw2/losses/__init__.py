"""How far: discrepancies between observed and simulated outputs inside every ball, and their gradients."""
