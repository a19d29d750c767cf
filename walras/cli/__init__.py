"""The `walras` command: one function per sub-command, and what they share to read and print."""
