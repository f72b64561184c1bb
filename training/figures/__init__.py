"""Figures of experiments: charts as data (`chart`), drawn as web page and PNG (`rendering`)."""
