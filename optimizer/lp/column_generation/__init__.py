"""Co-location of two jobs on one gang: a linear program solved by column generation."""
