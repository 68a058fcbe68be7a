"""Runs that can be resumed: state, checkpoints, the folder of a run, run identity, and the files of a log."""
