"""Which rule a function has, by its name."""

from __future__ import annotations

from jumok.lens.taps.function_rules.arithmetic import add, bend, clamp, divide, multiply, subtract
from jumok.lens.taps.function_rules.asking import Rule
from jumok.lens.taps.function_rules.masking import choose, fill, join
from jumok.lens.taps.function_rules.moves import (
    expand,
    index_into,
    keep,
    move_axis,
    permute,
    regroup,
    repeat,
    swap,
)
from jumok.lens.taps.function_rules.normalising import (
    exponential,
    gumbel_softmax,
    log_softmax,
    logsumexp,
    softmax,
    softmin,
    total,
)

_NAMES: dict[Rule, str] = {
    keep: "contiguous clone to type type_as float half bfloat16 double detach alias "
    "requires_grad dropout alpha_dropout",
    regroup: "view reshape unsafe_view flatten unflatten squeeze unsqueeze view_as reshape_as",
    swap: "transpose swapaxes swapdims t",
    permute: "permute",
    move_axis: "movedim moveaxis",
    index_into: "getitem",
    expand: "expand expand_as",
    repeat: "repeat_interleave",
    multiply: "mul multiply imul rmul",
    divide: "div divide true_divide truediv itruediv idiv",
    add: "add iadd radd",
    subtract: "sub subtract isub",
    bend: "tanh",
    clamp: "clamp clip clamp_min clamp_max max maximum min minimum",
    fill: "masked_fill",
    choose: "where",
    join: "cat concat concatenate",
    softmax: "softmax special_softmax",
    softmin: "softmin",
    gumbel_softmax: "gumbel_softmax",
    log_softmax: "log_softmax",
    exponential: "exp",
    logsumexp: "logsumexp",
    total: "sum",
}

RULES = {name: rule for rule, names in _NAMES.items() for name in names.split()}
