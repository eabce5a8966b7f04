"""``python -m engine.tokenizer``: started by the supervisor."""

from __future__ import annotations

from engine.process import ProcessContext, run_child
from engine.tokenizer.stage import TokenizerStage


def main(context: ProcessContext) -> None:
    """Run the stage until told to stop."""
    TokenizerStage(context).run()


if __name__ == "__main__":
    run_child(main)
