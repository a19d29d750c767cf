"""In-job client: counts steps, paces emulated accelerators, checkpoints. Standard library only."""
