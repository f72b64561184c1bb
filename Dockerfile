# One image for every process of the service: `moca api`, `moca worker`, `moca serve`.
#   docker build --tag moca-service:0.1.0-cpu --build-arg TORCH_INDEX=... .
# It runs as user 10001 on a read-only root: only /data (the store of `moca serve`) and /tmp are written.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# Index with torch's builds for the CPU or a CUDA version. Empty: pip's own, on Linux with CUDA, several GB.
ARG TORCH_INDEX=
# Optional parts of the service.
ARG EXTRAS=console,notify,torch
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CONSTRAINT=/src/constraints.txt
WORKDIR /src
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
# What the service needs, in the versions that it is tested with; pip stays outside of what is copied below.
COPY constraints.txt pyproject.toml ./
# hadolint ignore=DL3013
RUN python -m venv --without-pip /opt/moca \
    && pip --python /opt/moca/bin/python install --no-compile \
        ${TORCH_INDEX:+--no-deps --index-url "${TORCH_INDEX}"} torch \
    && python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *sum((p['optional-dependencies'][e] for e in '${EXTRAS}'.split(',')), []), sep='\n')" \
        > requirements.txt \
    && pip --python /opt/moca/bin/python install --no-compile -r requirements.txt
COPY LICENSE README.md ./
COPY deploy/packages deploy/packages
COPY model_core model_core
COPY moca_client moca_client
COPY service service
COPY training training
RUN MOCA_RELEASE=1 pip wheel --no-deps --wheel-dir dist . deploy/packages/client deploy/packages/core \
    && pip --python /opt/moca/bin/python install --no-deps --no-compile dist/*.whl
# Without what only building extensions needs, and without tables of symbols. Compiled are the modules that a
# start imports, and kernels for the processor of this machine; on another one workers compile them.
WORKDIR /opt/moca/lib/python3.11/site-packages
RUN rm -rf torch/include torch/share torch/test torch/lib/*.a torch/lib/lib*test.so \
    && strip --strip-unneeded torch/lib/libc10.so torch/lib/libtorch_cpu.so torch/lib/libtorch_python.so \
    && /opt/moca/bin/python -c 'import service.commands.main, service.runtime.supervisor, \
        service.api.app, service.api.server, service.worker.worker, service.webhooks.runner' \
    && /opt/moca/bin/python -m model_core.compiled

FROM ${PYTHON_IMAGE}
# "gcc libc6-dev" for workers on a GPU: torch compiles their steps.
ARG COMPILER=
LABEL org.opencontainers.image.title="moca-service" org.opencontainers.image.licenses="Apache-2.0"
# A container's first process ignores signals that it has no handler for, so a stop during the start would be
# waited out: tini is that process, and passes them on. jemalloc is for the store of `moca serve`.
# hadolint ignore=DL3008,SC2086
RUN apt-get update && apt-get install --yes --no-install-recommends tini libjemalloc2 ${COMPILER} \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin moca \
    && install --directory --owner moca /data /models
COPY --from=build /opt/moca /opt/moca
COPY deploy/healthcheck.py /opt/moca/
# NVIDIA_*: what the container toolkit hands over; of no effect without it.
ENV PATH=/opt/moca/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MOCA_HOST=0.0.0.0 MOCA_PORT=8000 MOCA_DATA_DIR=/data MOCA_MODELS_DIR=/models
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "/opt/moca/healthcheck.py"]
# 143: ended by SIGTERM, as an API does once all is answered.
ENTRYPOINT ["tini", "-e", "143", "--", "moca"]
CMD ["serve"]
