import io

from largebatch.data.prepare.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_there_is_a_line_an_interval_and_one_at_the_end():
    out, now = io.StringIO(), [0.0]
    with progress(
        "writing", "images", first=100, every_s=10, file=out, clock=lambda: now[0]
    ) as report:
        for second in range(1, 31):
            now[0] = float(second)
            report(100 + 30 * second, 1000)
    lines = out.getvalue().splitlines()
    # Of 1,000 images 100 were there; 30 images/s.
    assert lines == [
        "writing  400/1,000 images  30 images/s  eta 0:00:20",
        "writing  700/1,000 images  30 images/s  eta 0:00:10",
        "writing  1,000/1,000 images  30 images/s  eta 0:00:00",
    ]


def test_in_a_terminal_it_is_drawn(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    out, now = Terminal(), [0.0]
    with progress("writing", "images", file=out, clock=lambda: now[0]) as report:
        now[0] = 2.0
        report(50, 100)
    assert "writing" in out.getvalue()
    assert "50/100 images  25 images/s  eta 0:00:02" in out.getvalue()
