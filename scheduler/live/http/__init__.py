"""The HTTP face of the live server."""
