"""How many machines to rent where waiting costs money, and what revocations of rented machines cost."""
