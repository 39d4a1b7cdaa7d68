"""Class laws and their distances: moments, factors, Bures, gradients through them."""
