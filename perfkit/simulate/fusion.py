"""torch.compile on the simulated device: Inductor decides what is fused and kept; nothing is compiled.

Inductor runs unmodified up to its scheduler, with the backend for GPUs, which needs neither Triton nor a GPU
up to there. What its code would launch and allocate is then read from the scheduled nodes. All private
interfaces of torch's compiler are used here.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch._dynamo
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device
from torch._functorch import config as autograd_config
from torch._inductor import compile_fx
from torch._inductor import config as inductor_config
from torch._inductor.codegen.common import register_backend_for_device
from torch._inductor.codegen.triton import TritonScheduling
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes import fuse_attention, post_grad
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V

from perfkit.simulate import describe, device
from perfkit.simulate.graph import Buffer, Launch, Plan
from perfkit.simulate.step import Tensor

aten = torch.ops.aten


class _Interface(DeviceInterface):
    """What Inductor asks of a GPU: an ordinary one with 80 multiprocessors; few decisions depend on it."""

    class Worker:
        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return types.SimpleNamespace(
                name="simulated", type="sim", index=0, multi_processor_count=80, cc=80, major=8, minor=0,
                regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, warp_size=32,
                total_memory=16 << 30, max_threads_per_block=1024, shared_memory_per_block=49152,
            )  # fmt: skip

        current_device = staticmethod(lambda: 0)
        set_device = staticmethod(lambda device: None)

    get_device_properties = Worker.get_device_properties
    current_device = staticmethod(lambda: 0)
    set_device = staticmethod(lambda device: None)
    device_count = staticmethod(lambda: 1)
    is_available = staticmethod(lambda: True)
    get_compute_capability = staticmethod(lambda device=None: 80)
    is_bf16_supported = staticmethod(lambda including_emulation=False: True)
    is_dtype_supported = staticmethod(lambda dtype, including_emulation=False: True)
    synchronize = staticmethod(lambda device=None: None)
    is_triton_capable = staticmethod(lambda device=None: True)


@functools.cache
def register() -> None:
    """Makes the device known to torch's compiler; once a process."""
    register_interface_for_device(device.NAME, _Interface)
    register_backend_for_device(device.NAME, TritonScheduling, PythonWrapperCodegen)


@contextmanager
def compiling(run: Callable[[Plan, Callable[[], Any], list[Any]], Any]) -> Iterator[None]:
    """torch.compile plans graphs meanwhile, in place of compiling them.

    Args:
        run: called in place of the compiled graph, with its plan, what computes its outputs (fake ones, by
            the graph itself), and its inputs, a list which that empties.
    """
    register()
    torch._dynamo.reset()

    def inner(gm: Any, inputs: Any, **options: Any) -> Any:
        plan = planned(gm, inputs, bool(options.get("is_backward")), bool(options.get("is_inference")))

        def graph(given: list[Any]) -> Any:
            def outputs() -> Any:
                interpreter = torch.fx.Interpreter(gm)
                arguments = [*given]
                given.clear()
                return interpreter.boxed_run(arguments)

            return run(plan, outputs, given)

        graph._boxed_call = True  # type: ignore[attr-defined]
        return graph

    planning = functools.partial(compile_fx.compile_fx, inner_compile=inner)
    with (
        inductor_config.patch({"triton.cudagraphs": False, "compile_threads": 1}),
        autograd_config.patch({"enable_autograd_cache": False}),
        mock.patch.object(compile_fx, "compile_fx", planning),
        # The patterns of attention written out by hand are traced on the device, which needs a GPU.
        mock.patch.object(fuse_attention, "_sfdp_init", return_value=None),
    ):
        try:
            yield
        finally:
            torch._dynamo.reset()


def planned(gm: Any, inputs: Any, is_backward: bool, is_inference: bool) -> Plan:
    """The kernels and buffers of one graph, in the order of Inductor's scheduler."""
    fake_mode: Any = torch._guards.detect_fake_mode(inputs)
    post_grad.view_to_reshape(gm)
    with torch.no_grad():
        compile_fx.fake_tensor_prop(gm, inputs)
    compile_fx._recursive_record_original_output_strides(gm)
    with V.set_fake_mode(fake_mode):
        compile_fx._recursive_post_grad_passes(gm, is_inference=is_inference)
    graph = GraphLowering(
        gm, example_inputs=inputs, shape_env=fake_mode.shape_env, is_inference=is_inference,
        is_backward=is_backward,
    )  # fmt: skip
    with V.set_graph_handler(graph), V.set_fake_mode(fake_mode), DebugContext():
        graph.run(*inputs)
        graph._update_scheduler()
        return _Reader(graph).plan(is_backward)


class _Reader:
    """Reads a plan from a graph that has been scheduled."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.scheduler = graph.scheduler

    def plan(self, is_backward: bool) -> Plan:
        """Launches, and for each buffer which launch uses it last."""
        launches = [
            launch for node in self.scheduler.nodes if (launch := self.launch(node, is_backward)) is not None
        ]
        outputs = [_name(output) for output in self.graph.graph_outputs]
        return Plan(launches, [*self.graph.graph_inputs], outputs, is_backward)

    def launch(self, node: Any, is_backward: bool) -> Launch | None:
        """One kernel, or what only makes buffers."""
        inside = {part.get_name() for part in node.get_nodes()}
        written = [*self.written(node, inside)]
        read = [
            name for name in dict.fromkeys(dep.name for dep in node.read_writes.reads) if name not in inside
        ]
        own = {name for part in node.get_nodes() for name in part.get_buffer_names()}
        inputs = [tensor for name in read if name not in own if (tensor := self.tensor(name))]
        buffers = [Buffer(name, self.nbytes(name)) for name in written if self.owns_memory(name)]
        module, site = _place(node)
        attributes: dict[str, Any] = {}
        name, ins, outs = "", inputs, [t for n in written if (t := self.tensor(n))]
        if node.is_extern():
            origin = _origin(node)
            if origin is not None:
                name, attributes, ins, outs = self.called(origin)
        elif type(node).__name__ != "NopKernelSchedulerNode":
            name = "fused"
            attributes = {
                "nodes": _operators(node), "reduction": bool(node.is_reduction()),
                "nbytes": int(node.get_read_write_buffers_sizes()),
            }  # fmt: skip
        return Launch(name, ins, outs, attributes, module, site, buffers, read)

    def written(self, node: Any, inside: set[str]) -> Iterator[str]:
        """The buffers that are used outside of the kernel which writes them; others never reach memory."""
        outputs = {_name(output) for output in self.graph.graph_outputs}
        for buffer in node.get_outputs():
            name = buffer.get_name()
            users = {user.node.get_name() for user in buffer.users}
            if name in outputs or users - inside or not node.get_nodes()[1:]:
                yield name

    def tensor(self, name: str) -> Tensor | None:
        """A buffer or an input as a tensor."""
        buffer = self.graph.try_get_buffer(name)
        if buffer is None or not hasattr(buffer, "get_size") or buffer.maybe_get_layout() is None:
            return None
        try:
            size = [int(side) for side in buffer.get_size()]
            stride = [int(side) for side in buffer.get_stride()]
        except (NotImplementedError, TypeError, AttributeError):
            return None
        like = torch.empty_strided(size, stride, dtype=buffer.get_dtype(), device="meta")
        return describe.described(like)

    def nbytes(self, name: str) -> int:
        """Of a buffer's elements."""
        tensor = self.tensor(name)
        return tensor.nbytes if tensor else 0

    def owns_memory(self, name: str) -> bool:
        """Whether memory is allocated for it: not for views, and not for what is changed in place."""
        buffer = self.graph.try_get_buffer(name)
        if buffer is None or type(buffer.maybe_get_layout()).__name__ == "NonOwningLayout":
            return False
        return not buffer.get_inputs_that_alias_output() and not buffer.get_mutation_names()

    def called(self, origin: Any) -> tuple[str, dict[str, Any], list[Tensor], list[Tensor]]:
        """An operator that is called as in eager mode; convolutions in the layout that Inductor chose."""
        values = torch.utils._pytree.tree_map(
            lambda leaf: leaf.meta["val"] if isinstance(leaf, torch.fx.Node) else leaf,
            (origin.args, origin.kwargs, origin.meta["val"]),
        )
        args, kwargs, out = values
        last = self.graph.layout_opt and "convolution" in str(origin.target)
        described = functools.partial(_described, channels_last=bool(last))
        return (
            describe.name_of(origin.target),
            describe.attributes(origin.target, args, kwargs),
            [described(tensor) for tensor in describe.tensors((args, kwargs))],
            [described(tensor) for tensor in describe.tensors(out)],
        )


def _name(output: Any) -> str:
    """Of the buffer that is returned; empty for what is none."""
    try:
        return str(output.get_name())
    except (AttributeError, NotImplementedError):
        return ""


def _described(tensor: torch.Tensor, channels_last: bool) -> Tensor:
    found = describe.described(tensor)
    if channels_last and tensor.dim() == 4 and found.layout == "contiguous":
        return Tensor(found.shape, found.dtype, "channels_last")
    return found


def _origin(node: Any) -> Any:
    """The node of the traced graph that an operator outside of Inductor's own kernels comes from."""
    if type(node.node).__name__ == "MultiOutput":
        return None
    kernel = getattr(node.node, "op_overload", None)
    origins = [each for each in node.node.get_origins() if each.op == "call_function"]
    exact = [each for each in origins if each.target is kernel]
    heavy = [each for each in origins if describe.name_of(each.target) in _HEAVY]
    return next(iter([*exact, *heavy]), None)


_HEAVY = {
    "aten.convolution", "aten.convolution_backward", "aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm",
}  # fmt: skip


def _operators(node: Any) -> list[str]:
    """The operators that a fused kernel computes, each once."""
    origins = [each for part in node.get_nodes() for each in part.node.get_origins()]
    names = (describe.name_of(each.target) for each in origins if each.op == "call_function")
    return [*dict.fromkeys(names)]


def _place(node: Any) -> tuple[str, str]:
    """Module and line of the first operator in a kernel."""
    for part in node.get_nodes():
        for origin in part.node.get_origins() if part.node is not None else ():
            stack = origin.meta.get("nn_module_stack") or origin.meta.get("fwd_nn_module_stack")
            if stack:
                return _module(stack), _line(origin.meta.get("stack_trace") or "")
    return "", ""


def _module(stack: Any) -> str:
    path: str = [*stack.values()][-1][0]
    words = path.replace("L['self']", "").replace("._modules", "").replace("['", ".").replace("']", "")
    return words.strip(".").removeprefix("_orig_mod").strip(".")


def _line(trace: str) -> str:
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith('File "')]
    if not lines:
        return ""
    file, number, *_ = lines[-1].removeprefix('File "').split('", line ')
    return f"{file}:{number.split(',')[0]}"
