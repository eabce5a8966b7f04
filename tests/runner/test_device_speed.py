from __future__ import annotations

import multiprocessing

import pytest
import torch

from engine.runner import device_speed as module
from engine.runner.device_speed import FOLDER, describe, device_speed
from telemetry.events import DeviceSpeed

CPU = torch.device("cpu")


@pytest.fixture
def measured(monkeypatch):
    """Counts how often it was measured."""
    calls = []

    def measure(device, dtype):
        calls.append(dtype)
        return DeviceSpeed(1e9 * len(calls), 2e9)

    monkeypatch.setattr(module, "measure", measure)
    return calls


def test_it_is_measured_once_for_each_number_format(tmp_path, measured):
    first = device_speed(tmp_path, CPU, torch.float32)
    assert device_speed(tmp_path, CPU, torch.float32) == first == DeviceSpeed(1e9, 2e9)
    assert device_speed(tmp_path, CPU, torch.bfloat16).flops_per_s == 2e9
    assert measured == [torch.float32, torch.bfloat16]


@pytest.mark.parametrize("content", [b"", b"{", b'{"device": "another", "measured_ts": 1, "speed": [1, 2]}'])
def test_a_file_that_is_damaged_or_of_another_device_is_measured_again(tmp_path, measured, content):
    device_speed(tmp_path, CPU, torch.float32)
    (file,) = (tmp_path / FOLDER).glob("*.json")
    file.write_bytes(content)
    assert device_speed(tmp_path, CPU, torch.float32).flops_per_s == 2e9
    assert device_speed(tmp_path, CPU, torch.float32).flops_per_s == 2e9


def test_another_number_of_threads_is_another_device():
    threads = torch.get_num_threads()
    before = describe(CPU, torch.float32)
    torch.set_num_threads(threads + 1)
    try:
        assert describe(CPU, torch.float32) != before
    finally:
        torch.set_num_threads(threads)


def _measure_there(folder, out):
    out.put(device_speed(folder, CPU, torch.float32))


def test_processes_that_start_together_agree(tmp_path):
    spawn = multiprocessing.get_context("spawn")
    out = spawn.Queue()
    processes = [spawn.Process(target=_measure_there, args=(tmp_path, out)) for _ in range(3)]
    for process in processes:
        process.start()
    speeds = [out.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(10)
    assert speeds[0] == speeds[1] == speeds[2]
    assert speeds[0].flops_per_s > 1e8 and speeds[0].read_bytes_per_s > 1e8
