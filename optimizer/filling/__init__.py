"""Levels that rise until something is scarce: lexicographic max-min, flat or over a tree of entities."""
