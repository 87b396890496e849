# docker build -t phonate . && docker run --rm -p 127.0.0.1:8000:8000 phonate                     serves the packaged voice
# docker run --rm -v "$PWD:/work" phonate train speech data.path=my_voice                         trains in this folder
# For an NVIDIA GPU: docker build --build-arg TORCH=https://download.pytorch.org/whl/cu130 ..., docker run --gpus all ...
FROM python:3.12-slim

ARG TORCH=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH" torch

COPY pyproject.toml README.md LICENSE NOTICE /source/
COPY src /source/src
RUN pip install --no-cache-dir '/source[espeak,onnx,serve]' && rm -r /source

# Anybody may run it: docker run --user "$(id -u):$(id -g)" gives you the files that it writes.
ENV HOME=/tmp
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["phonate"]
CMD ["serve", "base/voice", "--host", "0.0.0.0"]
