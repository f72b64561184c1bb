"""The dashboards as code: `python deploy/grafana/generate.py` writes their JSON."""
