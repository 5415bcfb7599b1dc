"""What pods do, as traces and metrics of OpenTelemetry, by its conventions for generative AI. Needs the extra `otel`.

from pod.otel import Telemetry

async with Pod.open("coder.toml", telemetry=Telemetry()) as pod: ...
"""

from __future__ import annotations

from pod.errors import UsageProblem
from worker.errors import way_to_install

EXTRA = f"telemetry needs the extra `otel`: {way_to_install('otel')}"

try:
    from pod.otel.telemetry import Telemetry
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("opentelemetry"):
        raise
    raise UsageProblem(EXTRA) from None

__all__ = ["EXTRA", "Telemetry"]
