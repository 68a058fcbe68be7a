"""dtypes, errors, settings: what everything else stands on."""
