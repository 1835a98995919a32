"""Prometheus, Grafana, alerts, the live page."""
