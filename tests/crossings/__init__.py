"""Crossings: small random situations in which every three features meet, and promises that hold at every event."""
