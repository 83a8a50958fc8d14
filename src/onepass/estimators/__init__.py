"""Learners for everyone: scikit-learn's and river's manner over any of them."""
