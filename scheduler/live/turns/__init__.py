"""The loop: a step to the core, its commands to the board, one transaction, then effects."""
