"""The operator dashboard: server-rendered pages over the telemetry store, and their JSON API."""
