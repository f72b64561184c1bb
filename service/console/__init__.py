"""The console: a web page over the REST interface. What it is made of is under `static`.

Plotting code is that of the installed package `plotly` (extra `console`); without it there are
tables in place of charts.
"""
