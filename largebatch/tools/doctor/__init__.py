"""Check hosts, devices, data and network before a job of hours."""

from largebatch.tools.doctor.examination import Request, examine
from largebatch.tools.doctor.lines import Line, as_json, as_text

__all__ = ["Line", "Request", "as_json", "as_text", "examine"]
