"""Node, OpSpec and registry, topological order, shape checker, text and dot listing. Knows no op by name."""
