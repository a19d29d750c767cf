"""Projects, users and what they are guaranteed: trees over jobs, filled level by level."""
