"""Fitted models, with intervals, of training speeds that were not measured and of steps to a target not reached yet."""
