from __future__ import annotations

import os
from functools import cache

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

from tests.model_zoo import load_reference, make_model_folder
from tests.runner.factories import save_model

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def llama(tmp_path_factory):
    """(folder, reference model) of a tiny float32 Llama with an untied head."""
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_model(folder, tie_word_embeddings=False)


@pytest.fixture(scope="session")
def zoo(tmp_path_factory):
    """Makes (folder, reference model) of a tiny float32 model of a family, each once."""

    @cache
    def make(family: str):
        folder = make_model_folder(family, tmp_path_factory.mktemp(family))
        return folder, load_reference(folder)

    return make
