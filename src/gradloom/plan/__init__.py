"""graph -> order -> byte offsets -> bytecode, and the proof that they fit together."""
