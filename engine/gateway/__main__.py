"""Entry point of the gateway process."""

from engine.gateway.server import main
from engine.process import run_child

if __name__ == "__main__":
    run_child(main)
