# ruff: noqa: TID252, TID253 - imported only where on_cpu gives these modules
from ..functional import constant, matmul, relu
from ..module import Module


class MLP(Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        inter = relu(matmul(x, constant(self.first)))
        self.register_network_output("inter", inter)
        return matmul(inter, constant(self.second))
