"""The one place in the worker that speaks asyncio by name; nothing here is imported under trio."""
