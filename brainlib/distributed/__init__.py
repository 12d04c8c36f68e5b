"""How many processes take part, and what this one is among them."""
