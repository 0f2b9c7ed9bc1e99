"""Stands in for PyTorch before 2.1, where `_call_impl` was the call itself."""

class Module:
    def __init__(self):
        self.training = True
        self._modules = {}

    def add_module(self, name, module):
        self._modules[name] = module

    def named_modules(self, memo=None, prefix=""):
        memo = set() if memo is None else memo
        if self not in memo:
            memo.add(self)
            yield prefix, self
            for name, module in self._modules.items():
                if module is not None:
                    yield from module.named_modules(memo, prefix + ("." if prefix else "") + name)

    def _call_impl(self, *args, **kwargs):
        return self.forward(*args, **kwargs)

    __call__ = _call_impl
