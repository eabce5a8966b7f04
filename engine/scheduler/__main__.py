"""``python -m engine.scheduler``: the scheduler process of one replica."""

from engine.process import ProcessContext, run_child
from engine.scheduler.stage import SchedulerStage


def main(context: ProcessContext) -> None:
    """Run the stage until told to stop."""
    SchedulerStage(context).run()


if __name__ == "__main__":
    run_child(main)
