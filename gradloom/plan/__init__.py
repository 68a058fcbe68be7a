"""graph -> order -> byte offsets -> tape, and the proof that they fit together."""
