"""Which type, how many workers, what batch: every option weighed, or searched by trial runs."""
