"""What is believed of speeds that nobody measured yet, and what measured ones say of machines and networks."""
