"""The price path: what every class does at given prices, and prices at which all of it fits."""
