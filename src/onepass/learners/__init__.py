"""Learners: what observes a stream of examples and answers queries."""
