"""The device's clock, with a device that the test turns; cold weights on a GPU."""

import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from optim import timer  # noqa: E402


class Device:
    """Does in order what is queued; ns. Sleeping takes a ns a cycle, launching 5000 of the host's."""

    def __init__(self, monkeypatch):
        self.host = self.free = 0.0
        monkeypatch.setattr(torch.cuda, "_sleep", self.run)
        monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(self))

    def run(self, ns):
        self.free = max(self.free, self.host) + ns

    def launch(self, ns):
        self.host += 5_000
        self.run(ns)


class Event:
    def __init__(self, device):
        self.device = device

    def record(self):
        self.at = max(self.device.free, self.device.host)

    def query(self):
        return self.device.host >= self.at

    def synchronize(self):
        self.device.host = max(self.device.host, self.at)

    def elapsed_time(self, end):
        return (end.at - self.at) / 1e6


def test_launches_are_not_in_the_time(monkeypatch):
    device = Device(monkeypatch)
    assert timer.device_ns(lambda: [device.launch(100) for _ in range(10)]) == pytest.approx(1_000)


def test_a_device_that_woke_too_early_sleeps_longer(monkeypatch):
    device, runs = Device(monkeypatch), []
    found = timer.device_ns(lambda: runs.append(1) or [device.launch(100) for _ in range(10)], asleep=1_000)
    assert found == pytest.approx(1_000)
    assert len(runs) == 3  # after 1, 8 and 64 us


def test_what_waits_for_the_device_cannot_be_timed(monkeypatch):
    device = Device(monkeypatch)

    def wait():
        device.host = device.free

    with pytest.raises(RuntimeError, match="what is timed waits for it"):
        timer.device_ns(wait)


def test_events_time_nowhere_else():
    root = Path(timer.__file__).parent
    users = [path.name for path in root.rglob("*.py") if re.search("enable_timing|elapsed_time", path.read_text())]
    assert users == ["timer.py"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU: timing with cold weights is NOT tested")
def test_cold_weights_take_longer_than_the_cache_would():
    weight = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 2048, device="cuda", dtype=torch.bfloat16)
    found = timer.cold(lambda w: torch.nn.functional.linear(x, w), [weight])
    assert found["low_ns"] <= found["median_ns"] <= found["high_ns"]
    assert found["copies"] * weight.nbytes > 2 * torch.cuda.get_device_properties(0).L2_cache_size
