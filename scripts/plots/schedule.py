"""A picture of a plan: learning rate, momentum, batch and image size over the training."""

from pathlib import Path

from largebatch.config import Plan
from largebatch.studies.plots import colours, figure, save

_POINTS = 1_000


def schedule(plan: Plan, title: str, path: Path) -> None:
    """Draw it as a PNG."""
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
    made, axes = figure(len(panels), width=3.6, height=3.2)
    for ax, (name, values), colour in zip(axes, panels, colours(5)[1:], strict=True):
        ax.plot(epochs, values, color=colour, drawstyle="steps-post")
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("epoch")
        low, high = min(values), max(values)
        if low == high:
            ax.set_ylim(0, 1.25 * high or 1)
        elif low >= 0:
            ax.set_ylim(0 if high > 2 * low else None, None)
        ax.yaxis.set_major_formatter("{x:,g}" if high >= 1_000 else "{x:g}")
    made.suptitle(title, fontsize=11)
    save(made, path)
