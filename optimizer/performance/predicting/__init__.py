"""How fast a job would be where nobody measured it: one interface, several predictors, and who is believed."""
