"""What the cost model's page says of the network, of scaling and of stragglers."""

from collections.abc import Mapping, Sequence
from typing import Any

from pages.markdown import ms
from pages.markdown import table as as_table


def network(studies: Mapping[str, Any]) -> str:
    """The section on buckets and algorithms."""
    found, line = studies["bucket_sizes"], studies["timeline"]
    algorithms = studies["algorithms"]
    of = algorithms["of_gradients"]
    at = algorithms["devices"].index(2048)
    best = min(found["least_mib"], key=lambda row: row["exposed_s"])
    leaves = found["least_mib"][0]
    named = [
        (name, str(row["buckets"]), ms(row["exposed_s"], 2), ms(row["half_rate_exposed_s"], 2))
        for name, row in found["named"].items()
    ]
    times = [
        (name.replace("_", " "), f"{1e3 * seconds[at]:,.1f}")
        for name, seconds in sorted(of.items(), key=lambda item: item[1][at])
    ]
    return f"""
## Network
The record's step: gradients of the last layers travel first, while earlier layers still compute.
Only the group
of the first layers, {line["transfers"][-1]["nbytes"] / 1e6:.1f} MB, lies after backward:
{ms(line["exposed_s"])} ms.

{picture("bucket_timeline", "Compute row and network row of a step")}

Small buckets pay the latency often ({leaves["buckets"]} of at least {leaves["mib"]:g} MiB expose
{ms(leaves["exposed_s"])} ms), large ones begin late. Of equal least sizes {best["mib"]:.2g} MiB
are best,
{best["buckets"]} buckets and {ms(best["exposed_s"], 2)} ms, in a saw-tooth: what matters is how
little is left
for the last. Planned cuts have no such teeth; the second column is for a network of half the rate:

{as_table(("cuts", "buckets", "exposed, ms", "at half rate, ms"), named)}

{picture("bucket_sizes", "Exposed time against bucket size")}

ABCI's racks share a third of their nodes' bandwidth. Nodes that a scheduler spreads over the racks
speak mostly
across them, at 1/2.6 of the line; rings that follow the racks do not. One all-reduce of the 51 MB
of gradients
over 2,048 V100 at the line's rate:

{as_table(("algorithm", "ms"), times)}

{picture("all_reduce", "Algorithms against bytes and devices")}"""


def scaling(found: Mapping[str, Any]) -> str:
    """The section on other numbers of devices."""
    rows = [
        (
            name,
            *(f"{row['clock_s']:.0f}" for row in each),
            f"{each[-2]['device_hours']:.0f}",
        )
        for name, each in found["strong"].items()
    ]
    counts = [f"{row['devices']:,}" for row in found["strong"]["abci"]]
    weak = next(row for row in found["weak"]["abci"] if row["devices"] == 2048)
    return f"""
## Scaling
Seconds on the clock for {found["epochs"]} epochs at batch {found["batch"]:,}, whatever the memory,
and
device-hours with 2,048 devices, start-up included:

{as_table(("cluster", *counts, "device-hours"), rows)}

{picture("time_to_train", "Time to train against devices")}

With 40 images on each device, 2,048 V100 of ABCI reach {100 * weak["efficiency"]:.0f} % of a
node's rate; 77 % is
remembered from the paper (unverified), against a single device.

{picture("efficiency", "Efficiency against devices")}"""


def stragglers(survey: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The section on late workers."""
    slow = [
        (
            f"{row['workers']:,}",
            f"{row['mean']:.2f}",
            f"{row['drawn_mean']:.2f}",
            f"{row['drawn_deviation']:.2f}",
            f"{row['blom']:.2f}",
            f"{row['drawn_median']:.2f}",
        )
        for row in survey["rows"]
    ]
    wanted = [statement["share"] for statement in found["statements"]]
    fits = [
        ("published", *(f"{100 * share:.0f} %" for share in wanted), "", ""),
        *(
            (
                "independent" if name == "independent" else "with a shared factor",
                *(f"{100 * share:.1f} %" for share in fit["shares"]),
                f"{100 * fit['held_up']:.2f} %",
                f"{fit['common']:.3f}",
            )
            for name, fit in found["fits"].items()
        ),
    ]
    backups = found["backups"]
    rows = {row["ignored"]: row for row in backups["rows"]}
    chosen = [
        (
            str(b),
            f"{rows[b]['step_s']:.2f}",
            f"{rows[b]['drawn_step_s']:.2f}",
            f"{100 * rows[b]['efficiency']:.1f} %",
        )
        for b in (0, 1, 2, 3, 4, 5, 6, 8, 12, 20)
    ]
    policies = [
        (
            row["policy"],
            str(row["machines"]),
            f"{row['step_s']:.2f}",
            f"{row['gradients']:.1f}",
            f"{100 * row['efficiency']:.1f} %",
        )
        for row in found["policies"]
    ]
    low, high = backups["within_1_percent"]
    return f"""
## Stragglers
A synchronous step lasts as long as its slowest worker. With log-normal workers, μ = {
        survey["mu"]:g} and σ =
{survey["sigma"]:g}, one of which takes {
        survey["mean_worker"]:.2f} on average, the mean of the slowest grows with
the logarithm of their number and its spread narrows. *Exact* is an integral of one dimension,
*drawn*
{survey["draws"]:,} steps, Blom's approximation of the order statistic meets the median:

{
        as_table(
            ("workers", "mean, exact", "mean, drawn", "deviation, drawn", "Blom", "median, drawn"),
            slow,
        )
    }

{picture("step_times", "Distribution of the slowest worker")}

Chen et al. (2016) report of 100 workers that the 98th gradient is there within 2 s in 80 % of
steps and the last
in 30 %. The fitted workers are log-normal (median {found["median"]:g} s, σ = {
        found["sigma"]:g}, both assumed);
a share of them is held up by an exponential time of mean {
        found["delay"]:g} s (assumed). Independent workers
cannot meet both statements, whatever their distribution: the share that is late decides both. With
a factor that
all workers of a step share, both are met:

{as_table(("workers", "98th by 2 s", "100th by 2 s", "held up", "σ of the shared factor"), fits)}

Of {
        backups["machines"]
    } machines b are backups: the step goes on with the first 100 − b gradients, the others are
lost and their machines paid for. Efficiency is gradients a second and machine over those of a
worker that never
waits. Best is b = {backups["best"]}; {low} to {high} are within 1 % of it. Published: 4.

{as_table(("b", "step, s", "drawn", "efficiency"), chosen)}

{picture("backups", "Efficiency against backups")}

Policies for 96 such workers, without the shared factor. A deadline lets every worker give the
microbatches that
it has done:

{as_table(("policy", "machines", "step, s", "gradients", "efficiency"), policies)}

Dropping costs no machine but gradients, and an optimizer may need more steps for that: not in
these figures."""


def start(found: Sequence[Mapping[str, Any]]) -> str:
    """The section on initialisation."""
    rows = [(f"{row['devices']:,}", f"{1e3 * row['more_s']:.0f}") for row in found]
    return f"""
## Before the clock
Since v0.6 the clock starts when data is first touched. Before it lie 20.8 s on GPUs (Fujitsu v0.6)
and 137.5 s on
TPUs (Google JAX v0.7, with compilation). Every process draws the weights from one seed, so none
waits for another. Sending them from one process instead
would cost, by the network's model alone (no connection set-up, no waiting for the last process):

{as_table(("V100 of ABCI", "ms more"), rows)}"""


def picture(name: str, text: str) -> str:
    """A picture of the cost model."""
    return f"![{text}](images/cost_model_{name}.png)"
