"""What a recipe needs of its input, against what this host gives, and what would mend it."""

import dataclasses
from collections.abc import Mapping

from benchmarks.measure import Result
from largebatch.tools.doctor.need import (
    Need,
    advice,
    cores_needed,
    hosts_needed,
    need_in_time,
    need_of_devices,
    rate_with,
)

__all__ = [
    "Need",
    "cores_needed",
    "diagnosis",
    "hosts_needed",
    "need_in_time",
    "need_of_devices",
    "rate_with",
]


def diagnosis(need: Need, given: float, cores: int, instead: Mapping[str, float]) -> list[Result]:
    """The figures, each against the need, and what to change.

    Args:
        need: Of each host.
        given: Images/s that this host gives on all its cores.
        cores: How many those are.
        instead: Images/s that this host would give, by the name of the change.

    Returns:
        One result for each; the note of the first is the advice.
    """
    goal = need.images_per_s
    results = [
        Result(
            "this host, this data set",
            "images/s per host",
            (given,),
            goal=goal,
            note=f"{need.because}; {advice(need, given, cores, instead)}",
        )
    ]
    results += [
        Result(name, "images/s per host", (rate,), goal=goal, note="estimate")
        for name, rate in instead.items()
    ]
    more = cores_needed(need, given, cores)
    results.append(
        Result("cores per host that would do", "cores", (more,), better="less", goal=cores)
    )
    if need.divisible:
        hosts = hosts_needed(need, given)
        results.append(
            Result("hosts that would do", "hosts", (hosts,), better="less", goal=need.hosts)
        )
    return [dataclasses.replace(result, name=f"doctor: {result.name}") for result in results]
