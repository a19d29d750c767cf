"""Lexicographic max-min, level by level, by a primal-dual interior-point method."""
