"""The codes of a pod's own warnings (`Warned.code`): their one home on this floor."""

from __future__ import annotations

CHECKPOINT_STALE = "checkpoint.stale"
"""A checkpoint is not taken up, since its source has changed."""

COMPACTION_BLOCKED = "compaction.blocked"
"""A hook did not let a compaction begin."""

COMPACTION_FAILED = "compaction.failed"
"""A compaction made no new segment, and the run goes on."""

COMPACTION_NOT_POSSIBLE = "compaction.not_possible"
"""There is nothing that a compaction could make smaller."""

EMPTY_MESSAGE = "empty_message"
"""A message in the inbox had no text."""

FOLDER_NOT_TRUSTED = "folder_not_trusted"
"""The folder's own configuration asks for more than a folder that is not trusted gets."""

INBOX_REFUSED = "inbox_refused"
"""A file in the inbox is no command."""

INSTRUCTIONS = "instructions"
"""Something about the instruction files."""

MCP_ALTERED = "mcp.altered"
"""A server describes a tool otherwise than before."""

MCP_SERVER = "mcp.server"
"""A server of tools is not running, or some of its tools can't be offered."""

NATIVE_FOCUS = "native.focus"
"""A provider's compaction takes no focus."""

NATIVE_UNREADABLE = "native.unreadable"
"""A provider's memory has no text that others could read."""

SMALL_WINDOW = "small_window"
"""A window ends after one reply."""

TEXTS_RESTORED = "texts_restored"
"""Lost texts of a pod were made anew."""

UNKNOWN_WINDOW = "unknown_window"
"""Nothing knows the window of a model."""

YIELD_PASSED_OVER = "yield.passed_over"
"""A yield of an interceptor of the user's own is not followed."""
