"""``python -m engine.detokenizer``: started by the supervisor."""

from __future__ import annotations

from engine.detokenizer.stage import DetokenizerStage
from engine.process import ProcessContext, run_child


def main(context: ProcessContext) -> None:
    """Run the stage until told to stop."""
    DetokenizerStage(context).run()


if __name__ == "__main__":
    run_child(main)
