"""Encoding of tables: columns as features, targets as labels, learned from the training rows."""
