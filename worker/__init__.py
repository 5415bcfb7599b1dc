"""One conversation loop with a model."""
