"""What happens when the context has grown: the cut, the ladder, the items of the new segment, acceptance."""
