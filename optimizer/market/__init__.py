"""Classes of equal jobs facing pools, what is maximised over them, and the way back to jobs."""
