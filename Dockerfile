# One image for every process of the service: `moca api`, `moca worker`, `moca serve`.
#   deploy/build.sh                    with buildah, podman or docker
#   deploy/build.sh --variant cu130    with CUDA
# It runs as user 10001 on a read-only root file system: only /data (the embedded store of
# `moca serve`) and /tmp are written to.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# cpu, cu130, ...: what the image is called, and what torch is to be.
ARG VARIANT=cpu
# Package index with torch's builds of that variant; empty: wherever pip looks by itself.
ARG TORCH_INDEX=
# Optional parts of the service, such as "otel,plots".
ARG EXTRAS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY constraints.txt pyproject.toml ./
# pip stays outside of the environment that is copied below.
RUN python -m venv /opt/build && python -m venv --without-pip /opt/moca \
    && /opt/build/bin/pip install -c constraints.txt hatchling \
    && /opt/build/bin/pip --python /opt/moca/bin/python install --no-deps \
        ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} "$(grep '^torch==' constraints.txt)" \
    && python -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
        print("\n".join(sum((p["optional-dependencies"][e] for e in sys.argv[1].split(",") if e), \
        p["dependencies"])))' "${EXTRAS}" > requirements.txt \
    && /opt/build/bin/pip --python /opt/moca/bin/python install -c constraints.txt \
        -r requirements.txt \
    # What only building extensions and testing other packages need.
    && rm -rf /opt/moca/lib/python3*/site-packages/torch/include \
        /opt/moca/lib/python3*/site-packages/torch/share \
        /opt/moca/lib/python3*/site-packages/torch/test \
        /opt/moca/lib/python3*/site-packages/torch/lib/*.a \
        /opt/moca/lib/python3*/site-packages/sympy/*/tests \
        /opt/moca/lib/python3*/site-packages/sympy/*/*/tests \
        /opt/moca/lib/python3*/site-packages/numpy/*/tests \
        /opt/moca/lib/python3*/site-packages/networkx/*/tests \
        /opt/moca/lib/python3*/site-packages/networkx/*/*/tests
COPY LICENSE README.md ./
COPY model_core model_core
COPY service service
COPY training training
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation -w dist . \
    && /opt/build/bin/pip --python /opt/moca/bin/python install --no-deps dist/*.whl

FROM ${PYTHON_IMAGE}
ARG VARIANT=cpu
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="moca-service" \
      org.opencontainers.image.description="Online inference for streams whose behaviour switches" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="python:3.11-slim-bookworm" \
      service.moca.variant="${VARIANT}"
RUN groupadd --gid 10001 moca \
    && useradd --uid 10001 --gid moca --no-create-home --home-dir /tmp --shell /usr/sbin/nologin moca \
    && install --directory --owner moca --group moca /data /models
COPY --from=build /opt/moca /opt/moca
COPY deploy/healthcheck.py deploy/make_secrets.py /opt/moca/
# NVIDIA_*: what the container toolkit hands over; of no effect without it.
ENV PATH=/opt/moca/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MOCA_HOST=0.0.0.0 \
    MOCA_PORT=8000 \
    MOCA_DATA_DIR=/data \
    MOCA_MODELS_DIR=/models
WORKDIR /tmp
USER 10001:10001
EXPOSE 8000 9464
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "/opt/moca/healthcheck.py"]
ENTRYPOINT ["moca"]
CMD ["serve"]
