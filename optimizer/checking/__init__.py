"""The second opinion: every policy's measure written from its formula, sharing no code with what solves it."""
