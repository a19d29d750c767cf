"""Goodput: how fast a job whose batch and gang may change really gets on."""
