"""Benchmarks: distributions over episodes."""
