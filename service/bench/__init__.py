"""`moca bench`: measurements of the service and the filter that anyone can repeat."""

from service.bench.processes import BenchError
from service.bench.serve import ServeBench, bench_serve
from service.bench.step import StepBench, bench_step

__all__ = ["BenchError", "ServeBench", "StepBench", "bench_serve", "bench_step"]
