"""Several trackers as one."""

import pytest

from largebatch.tracking import Composite


class Recorder:
    """Keeps what it is called with; the last call fails if asked for."""

    def __init__(self, fails=False):
        self.calls, self.fails = [], fails

    def __getattr__(self, method):
        def call(*arguments, **values):
            self.calls.append((method, arguments, values))
            if method == "close" and self.fails:
                raise OSError("disk full")

        return call


@pytest.mark.parametrize("failing", [0, 1])
def test_every_tracker_receives_every_record_also_if_one_fails(failing):
    trackers = [Recorder(fails=index == failing) for index in range(2)]
    both = Composite(trackers)
    both.scalars(3, {"loss": 1.5})
    both.layers(3, 96, {"conv": {"trust_ratio": 0.1}})
    both.event("eval_stop", 3, 96, top1=0.5)
    both.flush()
    with pytest.raises(OSError, match="disk full"):
        both.close()
    assert trackers[0].calls == trackers[1].calls
    assert trackers[0].calls == [
        ("scalars", (3, {"loss": 1.5}), {}),
        ("layers", (3, 96, {"conv": {"trust_ratio": 0.1}}), {}),
        ("event", ("eval_stop", 3, 96), {"top1": 0.5}),
        ("flush", (), {}),
        ("close", (), {}),
    ]
