"""The codes of a worker's warnings (`Warned.code`): their one home on this floor. Those of the pod are in `pod/codes.py`."""

from __future__ import annotations

COUNT_FAILED = "count_failed"
"""A request could not be counted; the estimate stands."""

ESTIMATE_BARRED = "estimate_barred"
"""A model's estimates are not acted on."""

MEMORY_REBUILT = "context.memory_rebuilt"
"""A provider's memory is read in words: by a model that did not make it, or by its own, whose provider rejected it."""

SECRET_MASKED = "secret_masked"
"""A message of the user held a secret, which the log and the model do not get."""

USAGE_DOUBTED = "usage_doubted"
"""A provider reported a usage that is not believed. The figure `kind` says what was doubted; see `DoubtKind`."""
