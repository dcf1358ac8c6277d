"""A plot of a plan: learning rate and other quantities that vary over the training."""

from pathlib import Path

from largebatch.config.plan import Plan
from largebatch.plots import colours, figure, save

_POINTS = 1_000


def schedule(plan: Plan, title: str, path: Path) -> None:
    """Draw a panel for each varying quantity; the figure's title has the constants."""
    steps = sorted({1 + (plan.steps - 1) * i // (_POINTS - 1) for i in range(_POINTS)})
    epochs = [plan.position(step - 1) / plan.epoch_samples for step in steps]
    rates = [plan.rates(step) for step in steps]
    stages = [plan.stage_at(step) for step in steps]
    panels = (
        ("learning rate", [r.learning_rate for r in rates]),
        ("momentum", [r.momentum for r in rates]),
        ("global batch, images", [s.samples_per_step for s in stages]),
        ("image size, pixels", [s.facts.image_shape[0] for s in stages]),
    )
    varying = [panel for panel in panels if panel is panels[0] or len(set(panel[1])) > 1]
    constant = [
        f"{name.partition(',')[0]} {values[0]:,g}"
        for name, values in panels[1:]
        if len(set(values)) == 1
    ]
    made, axes = figure(len(varying), width=7.2 / min(2, len(varying)), height=3.2)
    for ax, (name, values), colour in zip(axes, varying, colours(5)[1:], strict=False):
        ax.plot(epochs, values, color=colour, drawstyle="steps-post")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("epoch")
        low, high = min(values), max(values)
        if low == high:
            ax.set_ylim(0, 1.25 * high or 1)
        elif low >= 0:
            ax.set_ylim(0 if high > 2 * low else None, None)
        ax.yaxis.set_major_formatter("{x:,g}" if high >= 1_000 else "{x:g}")
    made.suptitle("\n".join([title, ", ".join(constant)]).strip(), fontsize=10)
    save(made, path)
