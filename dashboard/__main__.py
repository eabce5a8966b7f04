"""``python -m dashboard``, started by the supervisor."""

from dashboard.process import main
from engine.process import run_child

if __name__ == "__main__":
    run_child(main)
