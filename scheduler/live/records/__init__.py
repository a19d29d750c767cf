"""What the server writes down, and reads again: the store, the journal, the logs."""
