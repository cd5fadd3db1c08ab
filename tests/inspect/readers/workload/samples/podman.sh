#!/bin/sh
podman run -d --name trt --device nvidia.com/gpu=all --security-opt=label=disable --shm-size 2g \
  --publish 8000:8000 -v "$PWD"/models:/models:Z nvcr.io/nvidia/tensorrt-llm/release:1.2.1 \
  bash -lc 'trtllm-serve /models/qwen --host 0.0.0.0 --tp_size 2'
