"""The solver: Sinkhorn with annealing, its bounds, and what a plan says."""
