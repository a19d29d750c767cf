"""Studies: one run with all its figures, policies side by side over seeds, grids of runs, and pages that show them."""
