"""Authentication and authorisation: tokens, roles, projects."""
