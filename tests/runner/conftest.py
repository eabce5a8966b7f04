from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.runner.factories import save_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """(folder, reference model) of a tiny float32 Llama with an untied head."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_model(folder, tie_word_embeddings=False)
