"""The second opinion: every policy's yardstick written from its formula, sharing no code with what solves it."""
