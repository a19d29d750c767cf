"""Forecasts: when jobs start and end, by rolling the live state forward with the same core over many random draws."""
