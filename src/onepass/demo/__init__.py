"""A local page to draw on: name a symbol, and see it known from then on."""
