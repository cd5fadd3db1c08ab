"""Asks the real TensorRT builder (TensorRT-RTX, no GPU) about engines and shapes: JSON in, JSON out, in one process.

For each case it declares the inputs as TensorRT-LLM does (`Network._add_input`: -1 where a dimension is dynamic,
and the dimension's name), and answers:

- `profiles`: is each profile valid to TensorRT (MIN <= OPT <= MAX), and is it added;
- `built`: does the builder's validation and shape analysis accept all profiles and make a plan;
- `inside`: for each shape of an input, does TensorRT find it between the bounds: the shape is put in as OPT;
- `together`: does shape analysis accept all shapes of a step at once, as the only shapes of a profile.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import tensorrt_rtx as trt

    class Quiet(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity, message) -> None:
            pass

    builder = trt.Builder(Quiet())
    answers = [answer(trt, builder, case) for case in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)


def answer(trt, builder, case) -> dict[str, object]:
    network = network_of(trt, builder, case["inputs"])
    profiles = [profile_of(builder, each) for each in case["profiles"]]
    config = config_of(trt, builder)
    added = [bool(profile) and config.add_optimization_profile(profile) >= 0 for profile in profiles]
    built = all(added) and builder.build_serialized_network(network, config) is not None
    inside = [
        [bool(profile_of(builder, {name: (low, shape, high)})) for name, low, shape, high in step["shapes"]]
        for step in case["steps"]
    ]
    together = [
        builds(trt, builder, network, step) if all(fits) else None
        for step, fits in zip(case["steps"], inside, strict=True)
    ]
    return {"profiles": added, "built": built, "inside": inside, "together": together}


def network_of(trt, builder, inputs):
    types = {
        "int32": trt.int32, "int64": trt.int64, "float16": trt.float16, "float32": trt.float32, "bool": trt.bool,
        "bfloat16": trt.bfloat16, "int8": trt.int8,
    }  # fmt: skip
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    for name, dtype, dims in inputs:
        shape = [-1 if isinstance(dim, str) else dim for dim in dims]
        tensor = network.add_input(name, types[dtype], shape)
        for axis, dim in enumerate(dims):
            if isinstance(dim, str):
                tensor.set_dimension_name(axis, dim)
        output = network.add_identity(tensor).get_output(0)
        output.name = f"{name}_out"
        network.mark_output(output)
    return network


def profile_of(builder, ranges):
    profile = builder.create_optimization_profile()
    for name, (low, best, high) in ranges.items():
        profile.set_shape(name, low, best, high)
    return profile


def config_of(trt, builder):
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1
    config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    return config


def builds(trt, builder, network, step) -> bool:
    config = config_of(trt, builder)
    profile = profile_of(builder, {name: (shape, shape, shape) for name, _, shape, _ in step["shapes"]})
    if config.add_optimization_profile(profile) < 0:
        return False
    return builder.build_serialized_network(network, config) is not None


if __name__ == "__main__":
    main()
