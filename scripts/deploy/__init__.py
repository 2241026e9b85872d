"""Checks of what stands in deploy/."""
