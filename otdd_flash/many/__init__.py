"""Many pairs of datasets at one eps: matrices, rankings, explanations, values of samples."""
