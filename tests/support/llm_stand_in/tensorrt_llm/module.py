class Module:
    def __init__(self):
        self._network_outputs = {}

    def __call__(self, *args):
        return self.forward(*args)

    def register_network_output(self, name, value):
        self._network_outputs[name] = value

    def named_network_outputs(self, prefix=""):
        for name, value in self._network_outputs.items():
            yield f"{prefix}{name}", value
        for name, child in vars(self).items():
            if isinstance(child, Module):
                yield from child.named_network_outputs(f"{prefix}{name}.")
