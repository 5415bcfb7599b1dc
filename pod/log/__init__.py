"""The durable record of a pod: append-only logs, an atomic pointer, blobs, artifacts, an inbox, one writer."""
