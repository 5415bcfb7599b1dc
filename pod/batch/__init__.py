"""Many tasks with one manifest: read, run by a host, each result written once, the same command again goes on."""

from __future__ import annotations
