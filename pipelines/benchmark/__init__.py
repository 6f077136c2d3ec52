"""Measurements behind the numbers in the documentation."""
