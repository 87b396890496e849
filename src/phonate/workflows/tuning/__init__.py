"""Hyperparameter search: `training.tuning` of a recipe."""
