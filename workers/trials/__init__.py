"""A job's script run here and now, without a server: to profile it, or to search its best configuration."""
