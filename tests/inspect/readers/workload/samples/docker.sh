#!/usr/bin/env bash
set -euo pipefail
docker run --rm -it --gpus all --ipc host --ulimit memlock=-1 --ulimit stack=67108864 \
  -p 8000:8000 -v $HOME/.cache:/root/.cache:rw -e HF_TOKEN \
  nvcr.io/nvidia/tensorrt-llm/release:1.2.1 \
  trtllm-serve Qwen/Qwen3-30B-A3B --host 0.0.0.0 --port 8000 --tp_size 2 --ep_size 2
