"""Profiles that reproduce other schedulers and their simulators, quirks included. Nothing here is a default of ours."""
