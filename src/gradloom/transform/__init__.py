"""graph -> graph: gradients, rewrites."""
