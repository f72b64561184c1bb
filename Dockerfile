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
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends binutils \
    && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml ./
COPY deploy/requirements deploy/requirements
# Every file has a hash in deploy/requirements. pip stays outside of the environment that is copied below.
RUN python -m venv /opt/build && python -m venv --without-pip /opt/moca \
    && install="/opt/build/bin/pip --python /opt/moca/bin/python install --require-hashes --no-deps \
        --no-compile" \
    && /opt/build/bin/pip install --require-hashes --no-deps -r deploy/requirements/build.txt \
    # Torch for the CPU where it can be had, else with CUDA.
    && { { [ "${VARIANT}" = cpu ] && ${install} ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} \
            -r deploy/requirements/cpu.txt; } \
        || ${install} ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} -r deploy/requirements/torch.txt; } \
    && if grep -q '^Requires-Dist: cuda-' /opt/moca/lib/python3*/site-packages/torch-*/METADATA; \
        then ${install} -r deploy/requirements/cuda.txt; fi \
    && python deploy/requirements/lock.py select pyproject.toml deploy/requirements/service.txt \
        "fast${EXTRAS:+,${EXTRAS}}" > requirements.txt \
    && ${install} -r requirements.txt
# The console draws with one file of plotly; the package is there with the extra `console` alone.
RUN site="$(echo /opt/moca/lib/python3*/site-packages)" && [ -d "${site}/plotly" ] || { \
    python deploy/requirements/lock.py only deploy/requirements/service.txt plotly > plotly.txt \
    && /opt/build/bin/pip install --require-hashes --no-deps --no-compile --target plotly -r plotly.txt \
    && mkdir -p "${site}/plotly/package_data" \
    && cp plotly/plotly/package_data/plotly.min.js "${site}/plotly/package_data/" \
    && cp -R plotly/plotly-*.dist-info "${site}/" \
    && sed -i '/plotly.min.js\|dist-info/!d' "${site}"/plotly-*.dist-info/RECORD; }
COPY LICENSE README.md ./
COPY deploy/packages deploy/packages
COPY model_core model_core
COPY service service
COPY training training
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation -w dist . deploy/packages/client deploy/packages/core \
    && /opt/build/bin/pip --python /opt/moca/bin/python install --no-deps --no-compile dist/*.whl \
    && /opt/build/bin/cyclonedx-py environment --output-reproducible --pyproject pyproject.toml \
        --mc-type application -o /opt/moca/sbom.cdx.json /opt/moca/bin/python
# What only building extensions and testing other packages need, and tables of symbols for debuggers.
# torch refuses to be imported without torch_shm_manager.
# hadolint ignore=DL3003
RUN cd /opt/moca/lib/python3*/site-packages \
    && find torch/bin -mindepth 1 ! -name torch_shm_manager -delete \
    && rm -rf torch/include torch/share torch/test torch/lib/*.a \
        torch/lib/lib*test.so torch/lib/libbackend_with_compiler.so torch/lib/libaoti_custom_ops.so \
    && find numpy sympy networkx mpmath -type d -name tests -prune -exec rm -rf {} + \
    && strip --strip-unneeded torch/lib/libc10.so torch/lib/libtorch_cpu.so \
        torch/lib/libtorch_python.so uvloop/*.so \
        httptools/parser/*.so \
    # Compiled are the modules that are imported at a start, instead of all.
    && /opt/moca/bin/python -c 'import service.commands.main, service.runtime.supervisor, service.commands.demo, \
        service.api.app, service.api.server, service.worker.worker, service.webhooks.runner' \
    # Kernels for the processor of this machine; on another one workers compile them in the background.
    && /opt/moca/bin/python -m model_core.compiled

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
