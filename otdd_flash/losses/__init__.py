"""Distances as differentiable functions of points, weights and label costs."""
