"""Virtual time around the scheduler core."""
