"""The server: HTTP, services, event loop, store, agents, solver processes, providers. All the I/O."""
