"""Runs as one page to read: numbers, curves, examples."""
