"""Reading of tables: files, DataFrames and arrays as columns of numbers or texts."""
