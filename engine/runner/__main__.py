"""Entry point of the runner process."""

from __future__ import annotations

from engine.process import ProcessContext, run_child
from engine.runner.threads import set_thread_environment


def main(context: ProcessContext) -> None:
    """Run the stage. torch is imported only after its environment is set."""
    set_thread_environment(context.config.threads)
    from engine.runner.stage import RunnerStage

    RunnerStage(context).run()


if __name__ == "__main__":
    run_child(main)
