"""What each kind of event does."""
