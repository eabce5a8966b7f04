import subprocess
import sys
from pathlib import Path

import pytest

from telemetry.events import Stage
from telemetry.gauges import Gauge, GaugeBoard, GaugePage, GaugeReader, PageOwner

OWNER = PageOwner(Stage.RUNNER, "r0", 1, 1)

_COUNTER = """
import sys
from pathlib import Path
from telemetry.events import Stage
from telemetry.gauges import Gauge, GaugePage, PageOwner
page = GaugePage(Path(sys.argv[1]), PageOwner(Stage.RUNNER, "r0", 1, 1))
page.set(Gauge.TAKEN, 1 << 40)
print("go", flush=True)
while True:
    page.add(Gauge.TAKEN)
"""


def test_a_reader_in_another_process_never_sees_a_torn_value(tmp_path):
    path = tmp_path / "x.gauges"
    child = subprocess.Popen([sys.executable, "-c", _COUNTER, str(path)], stdout=subprocess.PIPE, cwd=Path.cwd())
    try:
        child.stdout.readline()
        page = GaugeReader(path)
        last = 1 << 40
        for _ in range(300_000):
            value = page.get(Gauge.TAKEN)
            assert value >= last
            last = value
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_values_are_signed_and_outlive_the_owner(tmp_path):
    page = GaugePage(tmp_path / "x.gauges", OWNER)
    page.set(Gauge.BUSY_NS, -5)
    page.close()
    reader = GaugeReader(tmp_path / "x.gauges")
    assert reader.owner == OWNER
    assert reader.get(Gauge.BUSY_NS) == -5


def test_the_board_follows_new_replaced_and_removed_pages(tmp_path):
    board = GaugeBoard(tmp_path)
    assert board.pages() == []
    first = GaugePage(tmp_path / "a.gauges", OWNER)
    first.set(Gauge.RUNNING, 1)
    assert [page.get(Gauge.RUNNING) for page in board.pages()] == [1]
    second = GaugePage(tmp_path / "a.gauges", OWNER)
    second.set(Gauge.RUNNING, 2)
    assert [page.get(Gauge.RUNNING) for page in board.pages()] == [2]
    assert first.get(Gauge.RUNNING) == 1
    (tmp_path / "a.gauges").unlink()
    (tmp_path / "b.gauges").write_bytes(b"not yet a page")
    assert board.pages() == []
    board.close()


def test_what_is_not_a_page_is_refused(tmp_path):
    path = tmp_path / "x.gauges"
    path.write_bytes(b"\0" * 4096)
    with pytest.raises(ValueError, match="not a gauge page"):
        GaugeReader(path)
