"""Other schedulers' simulators as named worlds that reproduce their recorded runs, quirks included."""
