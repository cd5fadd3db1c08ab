"""Verbose build logs for tests.

Real ones by TensorRT-RTX 1.7 (in a process of its own: it may abort), and logs in the words of TensorRT 8.6 under
TensorRT-LLM 0.6, TensorRT 10.9 under TensorRT-LLM 0.21, TensorRT 10.12 under trtexec, and Polygraphy 0.53, written
after logs that users published.
"""

from __future__ import annotations

import json
import sys

from support.make_onnx import needs, run

BUILD = """
import json, sys, time
import tensorrt_rtx as trt
model, log, verbosity, profiles = sys.argv[1], open(sys.argv[2], "w", buffering=1), sys.argv[3], json.loads(sys.argv[4])
class Log(trt.ILogger):
    def __init__(self):
        trt.ILogger.__init__(self)
    def log(self, severity, message):  # as TensorRT-LLM's Python logger prefixes them
        log.write(f"[{time.strftime('%m/%d/%Y-%H:%M:%S')}] [TRT] [{str(severity).split('.')[-1][0]}] {message}\\n")
logger = Log()
builder = trt.Builder(logger)
network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(model)
config = builder.create_builder_config()
config.profiling_verbosity = getattr(trt.ProfilingVerbosity, verbosity)
for shapes in profiles:
    profile = builder.create_optimization_profile()
    for name, each in shapes.items():
        profile.set_shape(name, each["min"], each["opt"], each["max"])
    assert config.add_optimization_profile(profile) >= 0
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM89, 0)
plan = builder.build_serialized_network(network, config)
print(0 if plan is None else plan.nbytes)
"""


def build_log(path, folder, profiles, verbosity="DETAILED"):
    """Return the verbose log of a real TensorRT-RTX build, in a process of its own."""
    needs("tensorrt_rtx")
    log = folder / f"build-{verbosity.lower()}.log"
    size = int(run([sys.executable, "-c", BUILD, str(path), str(log), verbosity, json.dumps(profiles)]))
    assert size > 0
    return log


TENSORRT_LLM_LOG = """\
[TensorRT-LLM] TensorRT-LLM version: 0.21.0
[05/03/2025-10:30:30] [TRT-LLM] [I] Set gemm_plugin to auto.
[05/03/2025-10:30:31] [TRT-LLM] [D] Adding optimization profile 1/2
[05/03/2025-10:30:31] [TRT-LLM] [D] input_ids, min: [1], opt: [64], max: [256], dimension names: ['num_tokens']
[05/03/2025-10:30:31] [TRT-LLM] [D] host_past_key_value_lengths, min: [1], opt: [8], max: [16], dimension names: ['batch_size']
[05/03/2025-10:30:31] [TRT-LLM] [D] Added optimization profile: #0
[05/03/2025-10:30:31] [TRT-LLM] [D] Adding optimization profile 2/2
[05/03/2025-10:30:31] [TRT-LLM] [D] input_ids, min: [256], opt: [4096], max: [8192], dimension names: ['num_tokens']
[05/03/2025-10:30:31] [TRT-LLM] [D] host_past_key_value_lengths, min: [1], opt: [8], max: [16], dimension names: ['batch_size']
[05/03/2025-10:30:31] [TRT-LLM] [I] Total optimization profiles added: 2
[05/03/2025-10:30:31] [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0
[05/03/2025-10:30:32] [TRT] [I] [MemUsageChange] Init CUDA: CPU +13, GPU +0, now: CPU 126, GPU 262 (MiB)
[05/03/2025-10:30:32] [TRT] [I] [MemUsageChange] Init builder kernel library: CPU +1799, GPU +312, now: CPU 2061, GPU 574 (MiB)
[05/03/2025-10:30:40] [TRT] [V] Constructing optimization profile number 0 [1/2].
[05/03/2025-10:30:41] [TRT] [I] Total Host Persistent Memory: 21696 bytes
[05/03/2025-10:30:41] [TRT] [I] Total Device Persistent Memory: 0 bytes
[05/03/2025-10:30:41] [TRT] [I] Max Scratch Memory: 184320000 bytes
[05/03/2025-10:30:41] [TRT] [I] Total Activation Memory: 399360000 bytes
[05/03/2025-10:30:42] [TRT] [I] Total Activation Memory: 499360000 bytes
[05/03/2025-10:30:43] [TRT] [I] Total Weights Memory: 157136256 bytes
[05/03/2025-10:30:43] [TRT] [I] Engine generation completed in 3.00621 seconds.
[05/03/2025-10:30:43] [TRT] [V] Layers:
Name: LLaMAForCausalLM/transformer/layers/0/attention/qkv/PLUGIN_V2_Gemm_0, LayerType: PluginV2, Inputs: [ { Name: x, Location: Device, Dimensions: [-1,4096], Format/Datatype: Half }], Outputs: [ { Name: y, Location: Device, Dimensions: [-1,6144], Format/Datatype: Half }], ParameterType: PluginV2, TacticValue: 0x0000000000000000, StreamId: 0, Metadata:
Name: LLaMAForCausalLM/transformer/layers/0/attention/qkv/PLUGIN_V2_Gemm_0 [profile 1], LayerType: PluginV2, Inputs: [ { Name: x [profile 1], Location: Device, Dimensions: [-1,4096], Format/Datatype: Half }], Outputs: [ { Name: y [profile 1], Location: Device, Dimensions: [-1,6144], Format/Datatype: Half }], ParameterType: PluginV2, TacticValue: 0x0000000000000000, StreamId: 0, Metadata:
Name: {ForeignNode[LLaMAForCausalLM/transformer/layers/0/mlp/ELEMENTWISE_PROD_0...LLaMAForCausalLM/lm_head/CAST_0]}, LayerType: Myelin, Inputs: [], Outputs: [], TacticName: , StreamId: 0, Metadata:

Bindings:
input_ids
host_past_key_value_lengths
logits
[05/03/2025-10:30:43] [TRT] [I] [MemUsageStats] Peak memory usage of TRT CPU/GPU memory allocators: CPU 0 MiB, GPU 150 MiB
[05/03/2025-10:30:43] [TRT] [I] [MemUsageStats] Peak memory usage during Engine building and serialization: CPU: 2048 MiB
[05/03/2025-10:30:43] [TRT-LLM] [I] Total time of building Unnamed Network 0: 00:00:13
[05/03/2025-10:30:43] [TRT-LLM] [I] Build phase peak memory: 4851.33 MB, children: 24.88 MB
[05/03/2025-10:30:43] [TRT-LLM] [I] Total time of building all engines: 00:01:16
"""

OLD_LOG = """\
[11/29/2023-08:20:34] [TRT] [I] Total Scratch Memory: 1342439424
[11/29/2023-08:20:34] [TRT] [I] Total Activation Memory: 6308236288
[11/29/2023-08:20:35] [TRT] [I] Total Weights Memory: 26529804072
[11/29/2023-08:20:35] [TRT] [I] Engine generation completed in 21.5 seconds.
[11/29/2023-08:20:36] [TRT] [V] Engine Layer Information:
Layer(CaskConvolution): Conv_0 + PWN(Relu_1), Tactic: 0x4727434768e46395, images[Float(1,3,28,28)] -> y[Float(1,32,28,28)]
Layer(Reformat): Reformatting CopyNode for Input Tensor 0 to Conv_2, Tactic: 0, y[Float(1,32,28,28)] -> z[Half(1,32,28,28)]
"""

TRTEXEC_LOG = """\
&&&& RUNNING TensorRT.trtexec [TensorRT v101200] # trtexec --onnx=m.onnx --minShapes=images:1x3x64x64 --verbose
[06/17/2025-18:44:33] [I] Input build shape (profile 0): images=1x3x64x64+3x3x64x64+10x3x64x64
[06/17/2025-18:44:33] [I] Input build shape (profile 1): images=1x3x64x64+1x3x64x64+1x3x64x64
[06/17/2025-18:44:33] [I] TensorRT version: 10.12.0
[06/17/2025-18:44:40] [V] [TRT] Total Activation Memory: 4096 bytes
[06/17/2025-18:44:40] [I] Created engine with size: 12.5 MiB
"""

POLYGRAPHY_LOG = """\
[I] Configuring with profiles:[
        Profile 0:
            {input_ids [min=[1, 1], opt=[2, 8], max=[4, 32]],
             attention_mask [min=(1, 1), opt=(2, 8), max=(4, 32)]}
        Profile 1:
            {input_ids [min=[1, 1], opt=[2, 1], max=[4, 1]],
             attention_mask [min=(1, 2), opt=(2, 9), max=(4, 33)]}
    ]
[V] Total Activation Memory: 1024 bytes
"""
