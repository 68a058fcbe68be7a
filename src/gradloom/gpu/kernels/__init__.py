"""The rules of the kernels, one file per family."""
