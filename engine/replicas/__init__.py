"""The supervisor: starts every process, watches it, restarts it, drains and stops it."""
