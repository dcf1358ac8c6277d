"""Absent hardware: compile, schedule, predict; cost and straggler models; studies."""
