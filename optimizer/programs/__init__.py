"""Markets solved exactly: cvxpy programs that read like the formulas, and the same as matrices."""
