"""Pure decisions: problem in; decision, prices and certificate out."""
