"""Newton's method on the prices (the dual), for problems of any number of classes."""
