"""The mistakes that are planted: each with the model, the place, the plant and the code that should be told."""

from __future__ import annotations

import math
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

from support.planted_faults import PADDED, ROWS, at, eager, function, output, patched, weight

A, M, L = "model.layers.1.self_attn", "model.layers.1.mlp", "model.layers.1"
N = "model.layers.1.input_layernorm"
G, GA, GM = "transformer.h.1", "transformer.h.1.attn", "transformer.h.1.mlp"


class Case(NamedTuple):
    name: str
    code: str
    kind: str
    path: str
    plant: object
    more: dict = MappingProxyType({})
    settings: dict = MappingProxyType({})
    low: bool = True  # whether bfloat16 leaves enough of it to be seen
    says: str = ""  # in the values


def interleaved(_):
    def turn(q, k, cos, sin, *more, **named):
        import torch

        half = cos.shape[-1] // 2
        c, s = cos[..., :half].unsqueeze(1), sin[..., :half].unsqueeze(1)

        def turned(x):
            one, two = x[..., 0::2], x[..., 1::2]
            return torch.stack((one * c - two * s, two * c + one * s), -1).flatten(-2)

        return turned(q), turned(k)

    return turn


def halves(_):
    def turn(q, k, cos, sin, *more, **named):
        import torch

        def turned(x):
            one, two = x.chunk(2, -1)
            return x * cos.unsqueeze(1) + torch.cat((-two, one), -1) * sin.unsqueeze(1)

        return turned(q), turned(k)

    return turn


def partly(size):
    def wrap(own):
        def turn(q, k, cos, sin, *more, **named):
            import torch

            step = cos.shape[-1] // size
            angle = (
                torch.cat([cos[..., : cos.shape[-1] // 2][..., ::step]] * 2, -1),
                torch.cat([sin[..., : sin.shape[-1] // 2][..., ::step]] * 2, -1),
            )
            new_q, new_k = own(q[..., :size], k[..., :size], *angle)
            return torch.cat((new_q, q[..., size:]), -1), torch.cat((new_k, k[..., size:]), -1)

        return turn

    return wrap


def angles(change):
    """Change the angles inside attention alone: change(cos, sin, positions) -> cos, sin."""

    def wrap(own):
        def turn(q, k, cos, sin, *more, **named):
            return own(q, k, *change(cos, sin), *more, **named)

        return turn

    return function("apply_rotary_pos_emb", wrap)


def speeds(change):
    """Change how fast the rotary embedding turns."""
    return at("model.rotary_emb", lambda module: {"inv_freq": change(module.inv_freq)})


def other_base(base):
    import torch

    return lambda own: base ** -(torch.arange(own.shape[0]) / own.shape[0])


def angles_of(base=1e4, offset=0, factor=1.0, padded=False):
    def change(cos, sin):
        import torch

        size = cos.shape[-1] // 2
        steps = torch.arange(cos.shape[-2]) + offset
        turned = steps[:, None] / factor * base ** -(torch.arange(size) / size)
        both = torch.cat((turned, turned), -1).expand(cos.shape)
        return both.cos().to(cos.dtype), both.sin().to(cos.dtype)

    return angles(change)


def no_mask(module, q, k, v, mask, scaling):
    return q, k, v, None, scaling


def unpadded(module, q, k, v, mask, scaling):
    import torch

    size = q.shape[-2]
    causal = torch.full((size, size), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
    return q, k, v, causal[None, None], scaling


def mask_of(change):
    """Another mask to add: change(behind, low), of how many tokens each key is behind each query."""

    def wrap(module, q, k, v, mask, scaling):
        import torch

        new, total = q.shape[-2], k.shape[-2]
        behind = torch.arange(total - new, total)[:, None] - torch.arange(total)[None]
        return q, k, v, change(behind, torch.finfo(q.dtype).min)[None, None].to(q.dtype), scaling

    return eager(wrap)


def hidden(seen, low):
    import torch

    return torch.where(seen, 0.0, low)


def padding_on_the_right(module, q, k, v, mask, scaling):
    """The mask of a batch that is padded on the left, made as if it were padded on the right."""
    import torch

    size = q.shape[-2]
    padding = (mask[:, :, -1:] < -1).flip(-1)
    seen = torch.ones((size, size), dtype=torch.bool).tril()[None, None] & ~padding
    return q, k, v, hidden(seen, torch.finfo(q.dtype).min).to(q.dtype), scaling


def window(size):
    def change(module, q, k, v, mask, scaling):
        import torch

        new, total = q.shape[-2], k.shape[-2]
        behind = torch.arange(total - new, total)[:, None] - torch.arange(total)[None]
        seen = (behind >= 0) & (behind < size)
        return q, k, v, torch.where(seen, 0.0, torch.finfo(q.dtype).min)[None, None].to(q.dtype), scaling

    return eager(change)


def tiles(_):
    return lambda states, groups: states.repeat(1, groups, 1, 1)


def keys_and_values(change, *, past=True):
    def wrap(module, q, k, v, mask, scaling):
        return q, change(k), change(v), mask, scaling

    return eager(wrap)


def fp8(x):
    import torch

    return x.float().clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def forward(path, new):
    """Replace a module's whole computation: new(module, x)."""
    return at(path, lambda module: {"forward": lambda x, *more, **named: new(module, x)})


def rms(x, eps=1e-6):
    return x * (x * x).mean(-1, keepdim=True).add(eps).rsqrt()


def layer(x, eps=1e-6):
    return rms(x - x.mean(-1, keepdim=True), eps)


def linear(module, x, scale=1.0):
    import torch

    return torch.nn.functional.linear(x, module.weight * scale, module.bias)


def residual_layer(first, second):
    """A Llama layer with other sums: first(x, normed, attention) and second(y, normed, mlp)."""

    @contextmanager
    def plant(model):
        module = model.get_submodule(L)

        def forward(hidden_states, **more):
            normed = module.input_layernorm(hidden_states)
            made, _ = module.self_attn(hidden_states=normed, **more)
            middle = first(hidden_states, normed, made)
            again = module.post_attention_layernorm(middle)
            return second(middle, again, module.mlp(again))

        with patched(module, forward=forward):
            yield

    return plant


def shards(x, count, axis, order):
    import torch

    held = x.chunk(count, axis)
    return torch.cat([torch.zeros_like(held[0]) if each is None else held[each] for each in order], axis)


def int8(x, axis=None):
    import torch

    peak = x.abs().max() if axis is None else x.abs().amax(axis, keepdim=True)
    return torch.round(x / peak * 127).clamp(-127, 127) * peak / 127


def saturating(module, x):
    """An int8 product on a processor that sums pairs in 16 bits, written for one row after the other."""
    import numpy as np
    import torch

    rows = x.reshape(-1, x.shape[-1]).double().numpy()
    low, high = min(rows.min(), 0), max(rows.max(), 0)
    scale = (high - low) / 255
    zero = np.round(-low / scale)
    left = np.clip(np.round(rows / scale) + zero, 0, 255).astype(np.int64)
    held = module.weight.double().numpy()
    steps = np.abs(held).max(1) / 127
    right = np.clip(np.round(held / steps[:, None]), -128, 127).astype(np.int64)
    total = np.zeros((len(left), len(right)))
    for number, row in enumerate(left):
        pairs = (row * right).reshape(len(right), -1, 2).sum(-1)
        total[number] = np.clip(pairs, -32768, 32767).sum(-1)
    made = (total - zero * right.sum(1)) * scale * steps
    return torch.from_numpy(made).to(x.dtype).reshape(*x.shape[:-1], -1)


def sums_in_half(module, x):
    import torch

    total = torch.zeros((*x.shape[:-1], module.weight.shape[0]), dtype=torch.float16)
    for one, other in zip(x.half().split(8, -1), module.weight.half().split(8, 1), strict=True):
        total = total + (one.float() @ other.float().T).half()
    return total.to(x.dtype)


def scaled_up(path, factor):
    return weight(path, lambda held, _: held * factor)


def softmax_in(name):
    def wrap(_):
        def attention(module, q, k, v, mask, scaling=None, **more):
            import torch

            groups = module.num_key_value_groups
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            scores = q @ k.transpose(2, 3) * scaling + mask
            low = torch.softmax(scores.to(getattr(torch, name)), -1).to(q.dtype)
            return (low @ v).transpose(1, 2).contiguous(), low

        return attention

    return function("eager_attention_forward", wrap)


def softmax_step_by_step(name):
    def wrap(_):
        def attention(module, q, k, v, mask, scaling=None, **more):
            import torch

            groups = module.num_key_value_groups
            k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
            low = (q @ k.transpose(2, 3) * scaling + mask).to(getattr(torch, name))
            powers = (low - low.amax(-1, keepdim=True)).exp()
            weights = (powers / powers.sum(-1, keepdim=True)).to(q.dtype)
            return (weights @ v).transpose(1, 2).contiguous(), weights

        return attention

    return function("eager_attention_forward", wrap)


def queries_moved(own):
    """Queries turned for the position after their own."""

    def turn(q, k, cos, sin, *more, **named):
        import torch

        size = cos.shape[-1] // 2
        turned = (torch.arange(cos.shape[-2])[:, None] + 1) * 1e4 ** -(torch.arange(size) / size)
        both = torch.cat((turned, turned), -1).expand(cos.shape)
        moved = own(q, k, both.cos().to(cos.dtype), both.sin().to(cos.dtype), *more, **named)
        return moved[0], own(q, k, cos, sin, *more, **named)[1]

    return turn


def router(change):
    """Another choice of experts: change(logits) -> weights, indices."""

    def wrap(module):
        def forward(x):
            import torch

            logits = torch.nn.functional.linear(x.reshape(-1, x.shape[-1]).float(), module.weight.float())
            return (logits, *change(logits))

        return {"forward": forward}

    return at(f"{M}.gate", wrap)


def softmax_top(count, normalised):
    def change(logits):
        held, chosen = logits.softmax(-1).topk(count, -1)
        return held / held.sum(-1, keepdim=True) if normalised else held, chosen

    return change


def rows_of_heads(order, width=8):
    return lambda held, _: held.reshape(len(order), width, -1)[order].reshape(held.shape)


def pairs_in_heads(held, _):
    import torch

    order = torch.cat((torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    return held.reshape(-1, 8, held.shape[-1])[:, order].reshape(held.shape)


def page(x, one, other, size):
    made = x.clone()
    if x.shape[-2] <= (other + 1) * size:
        return made
    made[..., one * size : (one + 1) * size, :] = x[..., other * size : (other + 1) * size, :]
    made[..., other * size : (other + 1) * size, :] = x[..., one * size : (one + 1) * size, :]
    return made


def page_read(x, source, place, size, *, row=None):
    """A page that is read for another, of the same sequence or, for the first, of another one."""
    made = x.clone()
    if x.shape[-2] > 14:
        to, of = (slice(each * size, (each + 1) * size) for each in (place, source))
        for number in range(len(x)) if row is None else [0]:
            made[number][:, to] = x[number if row is None else row][:, of]
    return made


def too_large(held, steps):
    """Weights that are all too large by some steps of their quantiser."""
    return int8(held, 1) + steps * held.abs().amax(1, keepdim=True) / 127


def without_last(x):
    made = x.clone()
    made[..., -2 if x.shape[-2] > 14 else slice(0, 0), :] = 0
    return made


def dropping(model):
    return patched_training(model)


@contextmanager
def patched_training(model):
    model.get_submodule(A).train()
    try:
        yield
    finally:
        model.eval()


@contextmanager
def noisy(model):
    import torch

    def after(module, args, result):
        return result * (1 + 0.2 * torch.randn_like(result))

    hook = model.get_submodule(f"{M}.down_proj").register_forward_hook(after, prepend=True)
    try:
        yield
    finally:
        hook.remove()


def gelu(module, x):
    import torch

    return torch.nn.functional.gelu(x)


def swapped_mlp(module, x):
    return module.down_proj(module.act_fn(module.up_proj(x)) * module.gate_proj(x))


def halves_of_experts(held, _):
    import torch

    one, two = held.chunk(2, 1)
    return torch.cat((two, one), 1)


SCALED = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
                              "high_freq_factor": 4.0, "original_max_position_embeddings": 32}}  # fmt: skip
COS = {"own": ("in.position_embeddings.0", "in.position_embeddings.1")}
TWO = {"rows": PADDED}

CASES = (
    Case("pairs side by side", "DX961", "llama", A, function("apply_rotary_pos_emb", interleaved), says="interleaved"),
    Case("pairs half apart", "DX961", "deepseek", A, function("apply_rotary_pos_emb_interleave", halves)),
    Case("q rows for the other layout", "DX961", "llama", f"{A}.q_proj", weight(f"{A}.q_proj", pairs_in_heads)),
    Case("base, where angles are made", "DX962", "llama", "model.rotary_emb", speeds(lambda own: other_base(5e5)(own)), says="500000"),
    Case("base, inside attention", "DX962", "llama", A, angles_of(base=1e6), says="1e+06"),
    Case("a base nobody uses", "DX962", "llama", A, angles_of(base=33000.0)),
    Case("linear scaling", "DX963", "llama", A, angles_of(factor=4.0), says="linear by 4"),
    Case("llama3 scaling lost", "DX963", "llama", "model.rotary_emb", speeds(lambda own: other_base(1e4)(own)), settings=SCALED),
    Case("half of each head turned", "DX964", "llama", A, function("apply_rotary_pos_emb", partly(4)), says="4 of 8"),
    Case("nothing turned", "DX964", "qwen2", A, function("apply_rotary_pos_emb", lambda _: lambda q, k, *more, **named: (q, k))),
    Case("position off by one", "DX965", "llama", "model.rotary_emb", at("model.rotary_emb", lambda module: {"forward": (lambda own: lambda x, position_ids: own(x, position_ids + 1))(module.forward)}), says="+1"),
    Case("queries off by one", "DX965", "llama", A, function("apply_rotary_pos_emb", queries_moved), says="queries"),
    Case("learned position off by two", "DX965", "gpt2", "transformer.wpe", at("transformer.wpe", lambda module: {"forward": (lambda own: lambda ids: own(ids + 2))(module.forward)}), says="+2"),
    Case("positions count padding", "DX966", "llama", "model.rotary_emb", at("model.rotary_emb", lambda module: {"forward": (lambda own: lambda x, position_ids: own(x, position_ids * 0 + __import__("torch").arange(position_ids.shape[1])))(module.forward)}), more=TWO),
    Case("scale of the wrong width", "DX967", "llama", A, at(A, lambda module: {"scaling": module.scaling / math.sqrt(2)})),
    Case("scale forgotten", "DX967", "gpt2", GA, at(GA, lambda module: {"scaling": 1.0}), says="1"),
    Case("scale of latent attention", "DX967", "deepseek", A, at(A, lambda module: {"scaling": module.scaling * 1.3})),
    Case("cap on scores lost", "DX968", "gemma2", A, at(A, lambda module: {"attn_logit_softcapping": None})),
    Case("another cap on scores", "DX968", "gemma2", A, at(A, lambda module: {"attn_logit_softcapping": 0.3}), says="0.3"),
    Case("tokens see later ones", "DX969", "llama", A, eager(no_mask)),
    Case("tokens see later ones, gpt2", "DX969", "gpt2", GA, eager(no_mask)),
    Case("no token sees itself", "DX935", "llama", A, mask_of(lambda behind, low: hidden(behind > 0, low)), says="sees itself"),
    Case("each token sees the next", "DX935", "gpt2", GA, mask_of(lambda behind, low: hidden(behind >= -1, low)), says="1 token later"),
    Case("the mask is turned round", "DX935", "llama", A, mask_of(lambda behind, low: hidden(behind < 0, low)), says="turned round"),
    Case("the mask hides too little", "DX935", "llama", A, mask_of(lambda behind, low: hidden(behind >= 0, -1.0)), says="takes 1 from"),
    Case("padding masked on the other side", "DX935", "llama", A, eager(padding_on_the_right), more=TWO, says="other side"),
    Case("padding is seen", "DX970", "llama", A, eager(unpadded), more=TWO),
    Case("no window", "DX971", "mistral", A, window(64), says="none"),
    Case("another window", "DX971", "mistral", A, window(3), says="3"),
    Case("a window where there is none", "DX971", "llama", A, window(6), says="6"),
    Case("key heads tiled", "DX972", "llama", A, function("repeat_kv", tiles)),
    Case("heads of queries reversed", "DX973", "llama", A, eager(lambda module, q, k, v, mask, scaling: (q.flip(1), k, v, mask, scaling))),
    Case("heads in the weight exchanged", "DX973", "llama", f"{A}.q_proj", weight(f"{A}.q_proj", rows_of_heads([0, 2, 1, 3]))),
    Case("softmax in bfloat16", "DX974", "llama", A, softmax_in("bfloat16"), low=False),
    Case("softmax in float16", "DX974", "llama", A, softmax_in("float16"), low=False),
    Case("each step of softmax in bfloat16", "DX974", "llama", A, softmax_step_by_step("bfloat16"), low=False, says="bfloat16"),
    Case("an epsilon beyond all that are used", "DX975", "llama", N, at(N, lambda module: {"variance_epsilon": 0.5}), says="0.5"),
    Case("epsilon", "DX975", "llama", N, at(N, lambda module: {"variance_epsilon": 1e-2}), says="0.01", low=False),
    Case("an epsilon nobody uses", "DX975", "gpt2", f"{G}.ln_1", at(f"{G}.ln_1", lambda module: {"eps": 3.3e-2})),
    Case("norm without weight", "DX976", "llama", N, forward(N, lambda module, x: rms(x))),
    Case("norm without weight, gpt2", "DX976", "gpt2", f"{G}.ln_2", forward(f"{G}.ln_2", lambda module, x: layer(x, 1e-5) + module.bias)),
    Case("norm without bias", "DX987", "gpt2", f"{G}.ln_1", forward(f"{G}.ln_1", lambda module, x: layer(x, 1e-5) * module.weight)),
    Case("LayerNorm for RMSNorm", "DX978", "llama", N, forward(N, lambda module, x: layer(x) * module.weight)),
    Case("RMSNorm for LayerNorm", "DX978", "gpt2", f"{G}.ln_1", forward(f"{G}.ln_1", lambda module, x: rms(x, 1e-5) * module.weight + module.bias)),
    Case("one not added", "DX979", "gemma", N, forward(N, lambda module, x: rms(x) * module.weight)),
    Case("one added", "DX979", "llama", N, forward(N, lambda module, x: rms(x) * (1 + module.weight))),
    Case("gelu for silu", "DX980", "llama", f"{M}.act_fn", forward(f"{M}.act_fn", gelu), says="gelu"),
    Case("exact gelu", "DX980", "gpt2", GM, forward(f"{GM}.act", gelu), says="gelu", low=False),
    Case("relu in a mixture", "DX980", "mixtral", M, forward(f"{M}.experts.act_fn", lambda module, x: x.relu()), says="relu"),
    Case("gate and up exchanged", "DX981", "llama", M, forward(M, swapped_mlp)),
    Case("up's weight in gate", "DX981", "qwen2", f"{M}.gate_proj", weight(f"{M}.gate_proj", lambda held, model: model.get_submodule(f"{M}.up_proj").weight.data.clone())),
    Case("halves of experts exchanged", "DX981", "mixtral", M, weight(f"{M}.experts", halves_of_experts, "gate_up_proj")),
    Case("square weight transposed", "DX982", "llama", f"{A}.o_proj", weight(f"{A}.o_proj", lambda held, _: held.T)),
    Case("weight read in the other order", "DX982", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, _: held.T.contiguous().reshape(held.shape))),
    Case("shards of outputs exchanged", "DX983", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: shards(held, 2, 0, [1, 0]))),
    Case("shards of inputs exchanged", "DX983", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, _: shards(held, 4, 1, [0, 2, 1, 3]))),
    Case("a shard of outputs lost", "DX984", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: shards(held, 4, 0, [0, 1, 2, None]))),
    Case("a shard of inputs lost", "DX984", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, _: shards(held, 4, 1, [0, 1, None, 3]))),
    Case("sum of one rank", "DX985", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, _: shards(held, 4, 1, [None, None, 2, None]))),
    Case("one of two shards lost", "DX984", "gpt2", f"{GM}.c_proj", weight(f"{GM}.c_proj", lambda held, _: shards(held, 2, 0, [0, None]))),
    Case("reduced twice", "DX986", "llama", f"{A}.o_proj", output(f"{A}.o_proj", lambda x, y: 2 * y), says="2"),
    Case("bias lost", "DX987", "qwen2", f"{A}.k_proj", at(f"{A}.k_proj", lambda module: {"bias": None})),
    Case("bias of every rank", "DX988", "gpt2", f"{GM}.c_proj", weight(f"{GM}.c_proj", lambda held, _: 4 * held, "bias"), says="4"),
    Case("bias of another layer", "DX989", "qwen2", f"{A}.q_proj", weight(f"{A}.q_proj", lambda held, model: model.model.layers[2].self_attn.q_proj.bias.data.clone(), "bias")),
    Case("weight of another layer", "DX990", "llama", f"{M}.down_proj", weight(f"{M}.down_proj", lambda held, model: model.model.layers[2].mlp.down_proj.weight.data.clone())),
    Case("v for k", "DX990", "llama", f"{A}.k_proj", weight(f"{A}.k_proj", lambda held, model: model.get_submodule(f"{A}.v_proj").weight.data.clone())),
    Case("embedding not scaled", "DX991", "gemma", "model.embed_tokens", at("model.embed_tokens", lambda module: {"embed_scale": __import__("torch").tensor(1.0)}), says="1"),
    Case("embedding scaled", "DX991", "llama", "model.embed_tokens", output("model.embed_tokens", lambda x, y: y * math.sqrt(32))),
    Case("head taken from the embedding", "DX992", "llama", "lm_head", weight("lm_head", lambda held, model: model.model.embed_tokens.weight.data.clone())),
    Case("vocabulary of the head shifted", "DX993", "llama", "lm_head", weight("lm_head", lambda held, _: held.roll(3, 0)), says="-3"),
    Case("tokens shifted", "DX993", "qwen2", "model.embed_tokens", weight("model.embed_tokens", lambda held, _: held.roll(-2, 0)), says="+2"),
    Case("residual lost", "DX994", "llama", L, residual_layer(lambda x, n, a: a, lambda x, n, m: x + m)),
    Case("second residual lost", "DX994", "llama", L, residual_layer(lambda x, n, a: x + a, lambda x, n, m: m)),
    Case("residual twice", "DX995", "llama", L, residual_layer(lambda x, n, a: 2 * x + a, lambda x, n, m: x + m)),
    Case("residual after the norm", "DX996", "llama", L, residual_layer(lambda x, n, a: x + a, lambda x, n, m: n + m)),
    Case("small weights vanish", "DX998", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: held.masked_fill(held.abs() < 2**-6, 0)), low=False),
    Case("sums in float16", "DX999", "llama", f"{M}.down_proj", forward(f"{M}.down_proj", sums_in_half), low=False),
    Case("outputs held", "DX947", "llama", f"{M}.down_proj", output(f"{M}.down_proj", lambda x, y: y.clamp(-1.5, 1.5)), says="output"),
    Case("inputs held", "DX947", "llama", f"{M}.down_proj", forward(f"{M}.down_proj", lambda module, x: linear(module, x.clamp(-0.6, 0.6))), says="input"),
    Case("scale wrong", "DX948", "llama", f"{M}.up_proj", scaled_up(f"{M}.up_proj", 1.37), says="1.3"),
    Case("int8 with one scale", "DX949", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: int8(held)), low=False),
    Case("one scale for channels with their own", "DX949", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: int8(held, 1) / held.abs().amax(1, keepdim=True) * held.abs().max())),
    Case("zero point ignored", "DX950", "llama", f"{M}.up_proj", forward(f"{M}.up_proj", lambda module, x: linear(module, x + 0.7)), says="inputs"),
    Case("weights with another zero point", "DX950", "llama", f"{M}.up_proj", weight(f"{M}.up_proj", lambda held, _: too_large(held, 5)), says="5 steps", low=False),
    Case("backend saturates", "DX951", "llama", f"{M}.up_proj", forward(f"{M}.up_proj", saturating), low=False),
    Case("cache in fp8", "DX952", "llama", A, keys_and_values(fp8)),
    Case("cache in int8", "DX952", "llama", A, keys_and_values(int8), more={"step": 2}, low=False),
    Case("last token of the cache not written", "DX953", "llama", A, keys_and_values(without_last), more={"step": 2}),
    Case("pages exchanged", "DX954", "llama", A, keys_and_values(lambda x: page(x, 0, 2, 4)), more={"step": 1}),
    Case("a later page read for an earlier one", "DX954", "llama", A, keys_and_values(lambda x: page_read(x, 2, 0, 4)), more={"step": 1}, says="page 2 read for page 0"),
    Case("a page of another request", "DX954", "llama", A, keys_and_values(lambda x: page_read(x, 1, 1, 4, row=1)), more={"step": 1, "rows": [ROWS[0], ROWS[0][::-1]]}, says="page 1 is of the request 1 further"),
    Case("cache of another request", "DX954", "llama", A, keys_and_values(lambda x: __import__("torch").cat((x.flip(0)[..., :-1, :], x[..., -1:, :]), -2)), more={"step": 1, "rows": [ROWS[0], ROWS[0][::-1]]}),
    Case("one expert instead of two", "DX955", "mixtral", M, router(softmax_top(1, normalised=True)), says="1 experts"),
    Case("weights of experts not normalised", "DX955", "mixtral", M, router(softmax_top(2, normalised=False)), says="not normalised"),
    Case("scaling of experts lost", "DX955", "deepseek", M, at(f"{M}.gate", lambda module: {"routed_scaling_factor": 1.0}), says="times 1"),
    Case("experts in another order", "DX956", "mixtral", M, at(f"{M}.experts", lambda module: {"forward": (lambda own: lambda x, index, weights: own(x, (index + 1) % 4, weights))(module.forward)})),
    Case("experts themselves in another order", "DX956", "mixtral", f"{M}.experts", at(f"{M}.experts", lambda module: {"forward": (lambda own: lambda x, index, weights: own(x, (index + 1) % 4, weights))(module.forward)})),
    Case("a shard of the experts lost", "DX984", "mixtral", f"{M}.experts", weight(f"{M}.experts", lambda held, _: shards(held, 4, 2, [0, None, 2, 3]), "down_proj"), says="4"),
    Case("shared expert lost", "DX957", "deepseek", M, output(f"{M}.shared_experts", lambda x, y: 0 * y)),
    Case("dropout on", "DX958", "llama", A, dropping, more={"twice": True}, settings={"attention_dropout": 0.3}),
    Case("other numbers each time", "DX959", "llama", f"{M}.down_proj", noisy, more={"twice": True}),
)  # fmt: skip

HEALTHY = (
    ("llama", A, {}), ("llama", M, {}), ("llama", L, {}), ("llama", N, {}), ("llama", f"{A}.q_proj", {}),
    ("llama", A, {"step": 2}), ("llama", A, TWO), ("gpt2", GA, {}), ("gpt2", GM, {}), ("gpt2", f"{G}.ln_1", {}),
    ("mistral", A, {}), ("mixtral", M, {}), ("gemma2", A, {}), ("gemma2", "model.layers.1", {}), ("deepseek", A, {}),
    ("deepseek", M, {}), ("qwen2", "lm_head", {}), ("llama", "model.rotary_emb", {}), ("gemma", "model.embed_tokens", {}),
)  # fmt: skip
