"""Check hosts, devices, data and network before a job of hours."""

from largebatch.tools.doctor.examination import examine
from largebatch.tools.doctor.job import Job
from largebatch.tools.doctor.lines import Line, as_json, as_text

__all__ = ["Job", "Line", "as_json", "as_text", "examine"]
