# Serves a model of saved_models/, all its versions in the image. In the root of the repository:
#
#   docker build -f docs/docker/serve.Dockerfile --build-arg MODEL=demo -t demo-server .
#   docker run --rm -p 8501:8501 demo-server
ARG SERVING="tensorflow/serving:latest"
FROM $SERVING

ARG MODEL="demo"

# The server picks the highest version, and answers the warm-up requests in it before any other.
COPY saved_models/$MODEL /models/$MODEL
ENV MODEL_NAME=$MODEL
