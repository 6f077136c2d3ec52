# Trains, and runs every other command line. In the root of the repository:
#
#   docker build -f docs/docker/train.Dockerfile -t tf-relpos .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/work" tf-relpos
#
# For NVIDIA GPUs: --build-arg TENSORFLOW='tensorflow[and-cuda]==2.21.*', and --gpus all when it runs.
FROM python:3.12-slim

ARG TENSORFLOW="tensorflow==2.21.*"

COPY setup.cfg pyproject.toml README.md LICENSE /source/
COPY tf_relpos /source/tf_relpos
COPY pipelines /source/pipelines
RUN pip install --no-cache-dir "$TENSORFLOW" "/source[export,plot,graphs]" && rm -r /source

# What is read and written lies in the directory that is mounted here, data sets included.
WORKDIR /work
ENV HOME=/work
ENTRYPOINT ["tf-relpos-train"]
