"""Files outside a process: content by hash, checkpoints, results, and the object stores that hold them."""
