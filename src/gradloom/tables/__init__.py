"""Models of tables: defaults, networks, scores, saved models, and scikit-learn estimators."""
