"""dtypes, errors, settings: the foundation of all other packages."""
