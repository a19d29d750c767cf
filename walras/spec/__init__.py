"""Files that people write: their fields, how they are read and checked, and the errors that name field and fix."""
