"""Operators that TensorRT's ONNX parser imports: it goes by their names and does not look at their domains."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtdx.inspect.facts.artifact import Artifact

# `OnnxParser.supports_operator` of TensorRT-RTX 1.7.1 says yes to these, whatever the domain.
OPERATOR_NAMES = """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization
    BlackmanWindow Cast CastLike CausalConvWithState Ceil Celu Clip Concat Constant ConstantOfShape Conv
    ConvTranspose Cos Cosh CumSum DepthToSpace DequantizeLinear DistCollective Div Dropout Einsum Elu Equal Erf
    Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalLpPool
    GlobalMaxPool Greater GreaterOrEqual GridSample GroupNormalization GroupQueryAttention HammingWindow
    HannWindow HardSigmoid HardSwish Hardmax Identity If ImageScaler InstanceNormalization IsInf IsNaN LRN LSTM
    LayerNormalization LeakyRelu Less LessOrEqual LinearAttention Log LogSoftmax Loop LpNormalization LpPool
    MatMul MatMulNBits Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul MultiHeadAttention Neg
    NonMaxSuppression NonZero Not OneHot Or PRelu Pad ParametricSoftplus Pow QMoE QuantizeLinear
    RMSNormalization RNN RandomNormal RandomNormalLike RandomUniform RandomUniformLike Range Reciprocal ReduceL1
    ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare
    Relu Reshape Resize ReverseSequence RoiAlign RotaryEmbedding Round STFT ScaledTanh Scan Scatter
    ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh Size
    SkipSimplifiedLayerNormalization Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum
    Swish Tan Tanh TensorScatter ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
"""
IMPORTED_OPERATORS = frozenset(OPERATOR_NAMES.split())
# Made for a plugin, which NVIDIA ships or whoever exported the model has.
PLUGIN_NAME = re.compile(r"(?i)^trt|_TRT$|plugin|tensorrt|^mmcv|^mmdeploy")


def foreign_operators(onnx: Artifact) -> list[str]:
    """Return the operators of other domains that need a plugin of their name, as "domain::operator"."""
    functions = set(onnx.items("onnx.functions"))
    domain_operators = [name for name in onnx.table("onnx.operators") if "::" in name and name not in functions]
    return [name for name in domain_operators if not _is_importable(*name.split("::", 1))]


def _is_importable(domain: str, operator: str) -> bool:
    return operator in IMPORTED_OPERATORS or bool(PLUGIN_NAME.search(domain) or PLUGIN_NAME.search(operator))
