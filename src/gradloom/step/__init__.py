"""The end of a training step: sums of gradients, exchanged between ranks, clipping and the optimiser's update."""
