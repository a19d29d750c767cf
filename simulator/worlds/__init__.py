"""Other schedulers' simulators as named worlds that reproduce their recorded runs, defects included."""
