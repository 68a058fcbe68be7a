"""Backends and executables: who computes."""
