"""Composite: every tracker gets every record, and one that fails to close does not keep others."""

import pytest

from largebatch.tracking import Composite


class Recorder:
    def __init__(self, fails=False):
        self.calls = []
        self.fails = fails

    def scalars(self, step, values):
        self.calls.append(("scalars", step, dict(values)))

    def layers(self, step, samples, values):
        self.calls.append(("layers", step, samples, dict(values)))

    def event(self, name, step, samples, **values):
        self.calls.append(("event", name, step, samples, values))

    def flush(self):
        self.calls.append(("flush",))

    def close(self):
        self.calls.append(("close",))
        if self.fails:
            raise OSError("disk full")


def test_composite_passes_everything_to_each():
    first, second = Recorder(), Recorder()
    both = Composite([first, second])
    both.scalars(3, {"loss": 1.5})
    both.layers(3, 96, {"conv": {"trust_ratio": 0.1}})
    both.event("eval_stop", 3, 96, top1=0.5)
    both.flush()
    both.close()
    assert first.calls == [
        ("scalars", 3, {"loss": 1.5}),
        ("layers", 3, 96, {"conv": {"trust_ratio": 0.1}}),
        ("event", "eval_stop", 3, 96, {"top1": 0.5}),
        ("flush",),
        ("close",),
    ]
    assert second.calls == first.calls


@pytest.mark.parametrize("failing", [0, 1])
def test_composite_closes_all_when_one_raises(failing):
    trackers = [Recorder(fails=index == failing) for index in range(2)]
    with pytest.raises(OSError, match="disk full"):
        Composite(trackers).close()
    assert all(tracker.calls == [("close",)] for tracker in trackers)
