"""Equal jobs become one row: finding classes of jobs, and the problem stated over classes."""
