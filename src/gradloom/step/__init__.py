"""How a training step ends, with or without ranks, and what decides the rest of a run."""
