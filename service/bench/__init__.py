"""`moca bench`: measurements of the service and the filter that anyone can repeat."""

from service.bench.overload import OverloadBench, bench_overload
from service.bench.processes import BenchError
from service.bench.scale import ScaleBench, bench_scale
from service.bench.serve import ServeBench, bench_serve
from service.bench.step import GpuBench, StepBench, bench_gpu, bench_step

__all__ = [
    "BenchError",
    "GpuBench",
    "OverloadBench",
    "ScaleBench",
    "ServeBench",
    "StepBench",
    "bench_gpu",
    "bench_overload",
    "bench_scale",
    "bench_serve",
    "bench_step",
]
