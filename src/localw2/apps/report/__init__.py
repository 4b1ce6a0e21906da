"""One self-contained HTML file about a fit."""
