"""One conversation loop with a model: items, tools, models, the loop. A worker knows *yield*; it knows nothing of compaction."""
