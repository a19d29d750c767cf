"""Reports of runs: summaries, comparisons over seeds, sweeps, report pages, and recorded runs simulated again."""
