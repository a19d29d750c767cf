"""The `walras` command."""
