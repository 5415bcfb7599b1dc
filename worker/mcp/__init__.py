"""Servers of the Model Context Protocol as sources of tools.

What they say is data: their tools get names, effects and bounds here, and are called like every other tool. The protocol itself
is the package `mcp`'s (the extra `pod-runtime[mcp]`), which only `session.py` and the transports load.
"""
