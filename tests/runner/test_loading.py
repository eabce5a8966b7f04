from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.process import CannotStartError
from engine.runner.memory import check_memory
from engine.runner.weights import Checkpoint
from tests.runner.factories import make_config, make_runner, save_model

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path)
    return tmp_path


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def refusal(folder, **config) -> str:
    with pytest.raises(CannotStartError) as caught:
        make_runner(folder, **config)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert refusal(folder) == f"{folder}: there is no *.safetensors file"


def test_a_folder_without_configuration_is_refused(folder):
    (folder / "config.json").unlink()
    assert "cannot read the model's configuration" in refusal(folder)


@pytest.mark.parametrize("text", ["{}", "[]", "not json"])
def test_a_configuration_of_something_else_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    assert "config.json does not describe a known model" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 1000, 50_000])
def test_a_truncated_weights_file_is_named(folder, size):
    os.truncate(folder / "model.safetensors", size)
    assert f"the weights file {folder}/model.safetensors is damaged" in refusal(folder)


def test_a_missing_shard_is_named(tmp_path, llama):
    llama[1].save_pretrained(tmp_path, max_shard_size="100KB")
    lost = sorted(tmp_path.glob("*.safetensors"))[1]
    lost.unlink()
    assert f"cannot read the weights file {lost}" in refusal(tmp_path)


def test_a_broken_index_is_named(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": ')
    assert "model.safetensors.index.json is not an index" in refusal(folder)


def test_a_missing_tensor_is_named(folder):
    edit_weights(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "the weights have no tensor 'model.layers.1.mlp.up_proj.weight'" in refusal(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    edit_config(folder, intermediate_size=128)
    message = refusal(folder)
    assert "'model.layers.0.mlp.gate_proj.weight' is [96, 64], but config.json asks for [128, 64]" in message


def test_cuda_is_refused_where_there_is_none(folder, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cpu" in refusal(folder, device="cuda")
    assert make_runner(folder, device="auto").facts()["device"] == "cpu"


def test_a_pool_larger_than_the_memory_is_refused_before_it_is_allocated(folder):
    message = refusal(folder, kv_blocks=2**40)
    assert "the KV pool" in message
    assert message.endswith("lower --kv-blocks")
    assert refusal(folder, kv_blocks=0, kv_cache_memory="4000T").endswith("lower --kv-cache-memory")


@pytest.mark.parametrize(
    ("weights", "dtype", "advice"),
    [(90, "bfloat16", "--kv-cache-memory"), (200, "float32", "--dtype bfloat16"), (200, "bfloat16", "--model")],
)
def test_the_advice_fits_what_is_too_large(weights, dtype, advice):
    with pytest.raises(CannotStartError, match=advice):
        check_memory(weights << 20, 30 << 20, 100 << 20, make_config(dtype=dtype, kv_blocks=0))
    check_memory(70 << 20, 30 << 20, 100 << 20, make_config())


def test_weights_are_converted_to_the_number_format_asked_for(folder):
    assert Checkpoint(folder, torch.bfloat16, CPU).tensor("model.norm.weight", 64).dtype is torch.bfloat16
    wide, narrow = (Checkpoint(folder, dtype, CPU).num_bytes() for dtype in (torch.float32, torch.bfloat16))
    assert wide == 2 * narrow


def test_weights_of_the_right_format_stay_in_the_mapped_file(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"large": torch.ones(64 << 20, dtype=torch.uint8).view(torch.bfloat16)}, path)
    tensor = Checkpoint(tmp_path, torch.bfloat16, CPU).tensor("large", 32 << 20)
    address = tensor.data_ptr()
    mapped = [
        line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line
    ]
    assert any(int(start, 16) <= address < int(end, 16) for start, end in mapped)


def test_torch_is_imported_after_its_environment_is_set():
    code = (
        "import sys, os\n"
        "import engine.runner.__main__\n"
        "assert 'torch' not in sys.modules\n"
        "from engine.runner.threads import set_thread_environment\n"
        "set_thread_environment(1)\n"
        "import engine.runner.stage, torch\n"
        "assert torch.get_num_threads() == 1 and os.environ['OMP_WAIT_POLICY'] == 'passive'\n"
        "assert 'transformers' not in sys.modules\n"
        "set_thread_environment(0)\n"
        "assert os.environ['OMP_NUM_THREADS'] == str(len(os.sched_getaffinity(0)))\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OMP_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, timeout=60)
