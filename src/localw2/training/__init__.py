"""How: minimise a loss over a model, with checkpoints and progress, on one machine or many."""
