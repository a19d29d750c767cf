"""How fast a kind of job runs on an accelerator: measured, worked out and learned; and what to choose from it."""
