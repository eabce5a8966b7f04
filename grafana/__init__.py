"""Grafana's dashboards and Prometheus' rules, made from the metric table. The script is `grafana.generate`."""
