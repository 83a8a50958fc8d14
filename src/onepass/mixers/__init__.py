"""Sequence mixers: what carries information along a stream of tokens."""
