#!/usr/bin/env bash
# Build the service's image with docker, podman or buildah, whichever there is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  cat <<'HELP'
Usage: deploy/build.sh [OPTION...] [-- ARGUMENT...]

Build the image of moca-service, print its size, and put its bill of materials (CycloneDX, JSON)
into build/.

  --tool NAME      docker, podman or buildah   [the first that works; MOCA_BUILD_TOOL]
  --tag NAME       name of the image           [moca-service:VERSION-VARIANT; MOCA_IMAGE]
  --variant NAME   cpu, or torch's name of a CUDA version such as cu130   [cpu]
  --extras NAMES   optional parts between commas, such as otel,plots      [none]
  --base IMAGE     image to build on           [python:3.11-slim-bookworm]
  --torch-index U  package index with torch's builds of the variant   [where pip looks by itself]
  --help           this text

What follows -- goes to the tool as it is, such as --isolation chroot, or volumes with wheels
and certificates. No daemon is needed: buildah runs without one.
HELP
}

works() { # a docker client without a daemon cannot build
  case "$1" in
    docker) docker info >/dev/null 2>&1 ;;
    *) command -v "$1" >/dev/null 2>&1 ;;
  esac
}

pick_tool() {
  local each
  for each in docker podman buildah; do
    if works "$each"; then
      echo "$each"
      return
    fi
  done
  echo "deploy/build.sh: none of docker, podman and buildah works here" >&2
  return 1
}

tool="${MOCA_BUILD_TOOL:-}" tag="${MOCA_IMAGE:-}" variant=cpu
arguments=()
while [ $# -gt 0 ]; do
  case "$1" in
    --help | -h) usage; exit 0 ;;
    --) shift; break ;;
    --tool | --tag | --variant | --extras | --base | --torch-index)
      [ $# -ge 2 ] || { echo "deploy/build.sh: $1 needs a value" >&2; exit 2; } ;;
    *) echo "deploy/build.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
  case "$1" in
    --tool) tool="$2" ;;
    --tag) tag="$2" ;;
    --variant) variant="$2" ;;
    --extras) arguments+=(--build-arg "EXTRAS=$2") ;;
    --base) arguments+=(--build-arg "PYTHON_IMAGE=$2") ;;
    --torch-index) arguments+=(--build-arg "TORCH_INDEX=$2") ;;
  esac
  shift 2
done
[ -n "$tool" ] || tool="$(pick_tool)"
version="$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)"
[ -n "$tag" ] || tag="moca-service:$version-$variant"

revision="$(git rev-parse HEAD 2>/dev/null || echo unknown)"
# Of the commit, not of the build: the same source makes the same label.
created="$(git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)"
arguments+=(
  --build-arg "VARIANT=$variant" --build-arg "VERSION=$version"
  --build-arg "REVISION=$revision" --build-arg "CREATED=$created" --tag "$tag"
)
# The OCI format has no health check; docker always writes its own.
[ "$tool" = docker ] || arguments+=(--format docker)
"$tool" build "${arguments[@]}" "$@" .

case "$tool" in
  buildah) size="$(buildah images --format '{{.Size}}' "$tag")" ;;
  *) size="$("$tool" image ls --format '{{.Size}}' "$tag")" ;;
esac
echo "$tag: $size"

# What the image is made of, beside it: for scanners that look at files.
sbom="build/moca-service-$version-$variant.cdx.json"
mkdir -p build
container=
leave() { [ -z "$container" ] || "$tool" rm "$container" >/dev/null; }
trap leave EXIT
if [ "$tool" = buildah ]; then
  container="$(buildah from --pull-never "$tag")"
  cp "$(buildah mount "$container")/opt/moca/sbom.cdx.json" "$sbom"
else
  container="$("$tool" create "$tag")"
  "$tool" cp "$container:/opt/moca/sbom.cdx.json" "$sbom"
fi
echo "$sbom"
