"""Small tokenizers and model folders, made on the spot."""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from engine.config import Config
from engine.model_store import PlainProgress, resolve_model
from engine.process import ProcessContext
from engine.run_folder import ModelFiles, RunFolder, RunInfo, inbox_address
from engine.transport import Inbox
from telemetry.events import Stage
from telemetry.journal import JournalReader

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It isn't far, is it?  No!",
    "Ein ďábelské übung: naïve café, 😀😃 你好 こんにちは, x = 12 + 345;",
    "def f(a, b):\n    return a + b  # sum\n\n",
]
SPECIAL = ["<s>", "</s>", "<|turn|>"]


def byte_level_tokenizer() -> Tokenizer:
    """GPT-2's kind: every byte has a token, no normalization."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("added word", normalized=False)])
    return tokenizer


def llama_tokenizer() -> Tokenizer:
    """Llama 2's kind: ▁ for spaces, one in front of the text, <0xNN> for characters without a token, a start token."""
    characters = sorted({c for text in CORPUS for c in text if ord(c) < 0x250})
    pieces = [
        *SPECIAL,
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        *characters,
        "▁t",
        "he",
        "▁the",
        "▁f",
    ]
    vocab = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("▁", "f")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    start = [("<s>", vocab["<s>"])]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=start)
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    """BERT's kind: ## in front of what continues a word, spaces cleaned up around punctuation."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", *SPECIAL]))
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    """T5's kind: Unigram with ▁ for spaces."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>")
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
}


class StageRun:
    """A run folder for one stage of r0, driven in the test's own process, with the inboxes of its neighbours."""

    def __init__(self, tmp_path: Path, stage: Stage, model: ModelFiles, **settings: object) -> None:
        sockets = tmp_path / "s"
        sockets.mkdir()
        folder = RunFolder(tmp_path / "run")
        config = Config(data_dir=str(tmp_path / "data"), **settings)  # type: ignore[arg-type]
        folder.create(RunInfo("run", "", "host", config, model, str(sockets), os.getpid()))
        self.context = ProcessContext(folder, stage, "r0", 1)
        self.gateway = Inbox(self.context.zmq, inbox_address(str(sockets), Stage.GATEWAY, "", 1))
        self.scheduler = Inbox(self.context.zmq, inbox_address(str(sockets), Stage.SCHEDULER, "r0", 1))
        self._journal = folder.journals / f"r0.1.{stage}.journal"

    def receive(self, inbox: Inbox, count: int = 1) -> list:
        """The next `count` messages."""
        messages: list = []
        while len(messages) < count:
            assert inbox.socket.poll(5000), f"only {messages} arrived"
            messages += inbox.take()
        return messages

    def records(self) -> list:
        """What has been journaled after ProcessStarted."""
        return list(JournalReader(self._journal).read())[1:]

    def close(self) -> None:
        """Close all sockets."""
        self.context.zmq.destroy(linger=0)


def write_tokenizer_folder(folder: Path, tokenizer: Tokenizer, chat_template: str | None = None) -> ModelFiles:
    """A model folder as far as tokenizer and detokenizer need it: no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG | {"vocab_size": tokenizer.get_vocab_size()}))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": chat_template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ModelFiles("tiny", str(folder), "0" * 64, "1" * 64)


@cache
def default_model(dtype: str = "bfloat16") -> ModelFiles:
    """The real default model, from the cache, or downloaded and converted once."""
    config = Config()
    with Path("/dev/null").open("w") as nowhere:
        return resolve_model(config.model, dtype, config.cache_path, PlainProgress(nowhere))


@cache
def default_tokenizer() -> Tokenizer:
    """Its tokenizer."""
    return Tokenizer.from_file(f"{default_model().path}/tokenizer.json")
