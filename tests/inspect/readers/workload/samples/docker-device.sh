docker run -d --gpus '"device=2,3"' --shm-size=8g -p 9000:9000 nvcr.io/nvidia/tensorrt-llm/release:1.2.1 trtllm-serve Qwen/Qwen3-8B --host 0.0.0.0 --port 9000 --tp_size 2
