"""How many machines to rent where waiting costs money, and what it costs that the market takes them back."""
