"""What is asked of a profile and not in it."""

from walras.errors import ConfigError


class OutsideTable(ConfigError):
    """A profile says nothing about this placement, batch or epoch, and guessing would be worse than stopping."""
