"""Activations of pods on a queue: the port, its adapters, and what a node does with them."""
