"""Made the files in dump.zip, by the dumper of sglang 0.5.23 (its hooks on every module): ``python
tests/data/sglang/make.py FOLDER``.

``tests/data`` is in PYTHONPATH. Three modules of sglang that the dumper imports, and that need a
GPU's libraries, are stood in for."""

from __future__ import annotations

import sys
import types

from small_model import inputs, model

for name, names in {
    "sglang.srt.managers.io_struct": ("sock_recv", "sock_send", "wrap_as_pickle"),
    "sglang.srt.runtime_context": ("get_parallel", "get_server_args", "get_serving"),
    "sglang.srt.utils": ("get_device",),
}.items():
    sys.modules[name] = types.ModuleType(name)
    for each in names:
        setattr(sys.modules[name], each, lambda: "cpu")

from sglang.srt.debug_utils.dumper import DumperConfig, _Dumper  # noqa: E402

config = DumperConfig(
    enable=True, dir=sys.argv[1], exp_name="sglang", non_intrusive_mode="all", enable_grad=True
)
dumper = _Dumper(config=config)
net = model()
dumper.register_non_intrusive_dumper(net)
net(inputs()).square().mean().backward()
dumper.step()

# As Megatron keeps gradients: in param.main_grad, and none in param.grad. The caller's get_grad
# finds them.
config = DumperConfig(
    enable=True,
    dir=f"{sys.argv[1]}-main-grad",
    exp_name="sglang",
    enable_model_value=False,
    enable_model_grad=True,
)
dumper = _Dumper(config=config)
net = model()
net(inputs()).square().mean().backward()
for parameter in net.parameters():
    parameter.main_grad, parameter.grad = parameter.grad, None
dumper.dump_model(net, get_grad=lambda parameter: parameter.main_grad)
