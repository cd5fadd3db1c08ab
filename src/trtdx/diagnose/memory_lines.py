"""How `diagnose` knows a line that tells of memory, and a finding that numbers can be put to.

The texts are looked for in the same pass as everything else, so this module imports nothing.
"""

from __future__ import annotations

# Each at least eight characters long and rare in what a healthy server prints over and over.
MEMORY_TEXTS = (
    # TensorRT's builder and runtime
    "Total Activation Memory", "Total Weights Memory", "Total Scratch Memory", "Device Persistent Memory",
    "[MemUsageStats]", "[MemUsageChange]", "Loaded engine size", "Tactic Device request", "Requested amount of",
    "bytes of scratch space",
    "OutOfMemory (", "Failed to deserialize cuda engine", "Activation memory size:", "Weights memory size:",
    "Max KV Cache memory size", "Estimated max memory usage on runtime", "may not be enough when running inference",
    # the C++ runtime
    "for execution context memory", "GPU memory for runtime buffers", "GPU memory for decoder",
    "when calculating max tokens in paged", "KV cache primary pool", "KV cache secondary pool", "tokens per block",
    "KV cache blocks per sequence", "KV cache pages per sequence",
    "bytes for k/v cache", "tokens in paged KV cache", "LoRA device cache", "LoRA host cache", ": out of memory",
    "The smaller value will be used", ".primaryBlocks=", "too large to fit at least one sequence", "for at least one sequence to fit",
    "maxSequenceLen is reduced", "Impossible to fit in any sequence", "is using GPU ",
    # the PyTorch backend
    "for model weights", "in memory usage profiling", "Peak memory during memory usage", "It limits max memory to",
    "Estimated max memory in KV cache", "Estimated KV cache:", "[mem-profile/", "PyTorch memory fraction", "Model weights (torch)",
    "Model weights (non-torch)", "Peak memory: ", "Executor creation failed due to",
    "component could not be created", "Total GPU memory (GiB)", "Free GPU memory before component",
    "Previously created components", "CUDA out of memory. Tried", "exceeds upper bound", "Adjusted max_attention_window",
    "Reserving ", "cache quota set to", "pool memory bytes:", "Splitting KV cache", "Attention workspace size is not",
    "Prefetching ",
    # the machine
    "MiB / ", "MiB |", "Killed process", "OOMKilled", "Bus error", "signal 9", "exit code 137", "status 137",
    "extend /dev/shm", "gpu_peak_mem",
    # settings
    "max_batch_size", "max_num_tokens", "max_seq_len", "maxBatchSize", "maxNumTokens", "maxSequenceLen",
    "maxBeamWidth", "free_gpu_memory_fraction", "free_gpu_mem_fraction", "TensorRT-LLM version", "TensorRT LLM version", "found in the config file", "MPI size:",
    # the command, the GPU and the format, for what stands in no error
    "trtllm-serve ", "trtllm-build --", "trtllm-bench --", "quant_algo", "NVIDIA A100", "NVIDIA H100", "NVIDIA L40", "Tesla V100",
    "Tesla T4", "GeForce RTX",
    "Set gemm_plugin to", "Set context_fmha to", "Set remove_input_padding to", "KV Memory Percentage",
)  # fmt: skip
# The pages that a log's own words lead to when memory ran out; a verdict puts numbers to any of them.
OUT_OF_MEMORY_CODES = frozenset(
    (
        "DX340",
        "DX341",
        "DX342",
        "DX343",
        "DX344",
        "DX345",
        "DX346",
        "DX360",
        "DX362",
        "DX368",
        "DX369",
        "DX373",
    )
) | {"DX113", "DX146", "DX153", "DX178", "DX283", "DX356", "DX359", "DX461", "DX701", "DX914"}
HOST_MEMORY_CODES = frozenset(("DX350", "DX351", "DX352", "DX400", "DX231", "DX455"))
HOST_MEMORY_TEXTS = (
    "Prefetching ",
    "available: ",
    "[mem-profile/",
)  # what there can be to say about host memory
BLOCK_HEAD = "Free GPU memory before component creation attempt"  # a table of other components follows
BLOCK_LINES = 18
MAX_MEMORY_LINES = 1500  # of one source; the first half and the last half of them are kept

_LOWER = tuple(text.lower() for text in MEMORY_TEXTS)


def mentions_memory(line: str) -> bool:
    """Whether a line may tell of memory."""
    lower = line.lower()
    return any(text in lower for text in _LOWER)
