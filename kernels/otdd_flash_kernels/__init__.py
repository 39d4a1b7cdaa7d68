"""Costs as kernels and on the CPU: tensors in, tensors out; no datasets, no autograd."""
