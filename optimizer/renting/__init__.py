"""How many machines to rent where waiting costs money."""
