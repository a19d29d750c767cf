"""How a client reaches a server: address, retries, sessions, calls without asyncio."""
