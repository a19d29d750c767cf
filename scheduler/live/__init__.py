"""The server: HTTP, store, agents, solver pool, providers. All the I/O."""
