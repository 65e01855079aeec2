#!/usr/bin/env python3
"""Make a zoo: one tiny model with random weights of each architecture, to test that it loads and runs.

Each file has three or four blocks of width 64, f32 weights and a real tokenizer of 294 tokens: bytes, the
first merges of GPT-2 and three control tokens (one file has five more). It is drawn from its name: the same bytes each time. The
scales are such that the text is ASCII, depends on what came before and hardly ever ends by itself. It
means nothing.

ZOO states for each architecture what llama.cpp asks for: its keys and the shapes of its tensors.
"""

import argparse
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from get import default_folder

try:
    import gguf
    import numpy as np
except ImportError as error:
    raise SystemExit(f"error: {error}; install both with: pip install gguf numpy") from error

Value = bool | int | float | str | list[bool] | list[int] | list[str]
Draw = Callable[[np.random.Generator], np.ndarray]
Tensors = dict[str, Draw]

CONTEXT = 4096
WIDTH = 64
HEADS = 2
KEY_HEADS = 1
HEAD = 32  # A multiple of 32, so that the cache can be quantised.
HIDDEN = 128  # Of the feed-forward layer,
EXPERT = 32  # and of one expert.
EXPERTS = 4
EXPERTS_USED = 2
WINDOW = 32  # Tokens that a block with a sliding window sees.
KERNEL = 4  # Tokens that a convolution sees.
ENCODER_CONTEXT = 512

SHARP = 3.0  # Spread of attention scores: high enough for a few tokens to take most of the weight.
LOUD = 2.0  # How strongly attention and states add to the residual stream, against 1 for embeddings.


class Model(NamedTuple):
    """What is particular to one architecture."""

    keys: dict[str, Value]
    """Metadata beside what all share, without the name of the architecture."""
    blocks: list[Tensors]
    """The tensors of each block, without its index."""
    rest: Tensors = {}
    """Tensors outside the blocks beside what all share, or instead of it."""
    final_norm: str = "output_norm"
    architecture: str = ""
    """Where the file is called otherwise."""
    shares: bool = True
    """Whether it has token embeddings and an output as all share them."""
    tokenizer: dict[str, Value] = {}
    """Keys of its tokenizer beside what all share, or instead of it."""
    control: tuple[str, ...] = ()
    """Control tokens beside those that all share; `rest` has its token embeddings and its output then."""


# --- tokenizer ---

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The first merges of GPT-2, which spells a space as Ġ.
MERGES = (
    "Ġ t,Ġ a,h e,i n,r e,o n,Ġt he,e r,Ġ s,a t,Ġ w,Ġ o,e n,Ġ c,i t,i s,a n,o r,e s,Ġ b,e d,Ġ f,in g,Ġ p,"
    "o u,Ġa n,a l,a r,Ġt o,Ġ m,Ġo f,Ġ in,Ġ d,Ġ h,Ġan d"
).split(",")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokens() -> list[str]:
    """GPT-2's spelling of each byte: itself if it can be seen, else a character from 256 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


TOKENS = [*byte_tokens(), *(merge.replace(" ", "") for merge in MERGES), *CONTROL]
KNOWN_TO_HEAD = [token for token in range(len(TOKENS)) if token % 3]
# Tokens of the text to generate: not those of control, nor bytes that are no printable ASCII.
SPOKEN = [*range(0x20, 0x7F), *range(256, 256 + len(MERGES))]


# Tokens for filling gaps; llama.cpp knows them by these names, which are Qwen's.
INFILL = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>")


def tokenizer(more: tuple[str, ...]) -> dict[str, Value]:
    tokens, control = [*TOKENS, *more], len(CONTROL) + len(more)
    end = TOKENS.index(CONTROL[0])
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - control) + [gguf.TokenType.CONTROL] * control
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.mask_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.chat_template": TEMPLATE,
    }


# --- weights: shapes are numpy's, the reverse of ggml's ---


def normal(*shape: int, mean: float = 0.0, spread: float) -> Draw:
    return lambda random: mean + spread * random.standard_normal(shape)


def matrix(*shape: int, gain: float = 1.0) -> Draw:
    """A matrix or a stack of them: maps an input of spread 1 to an output of spread `gain`."""
    return normal(*shape, spread=gain / math.sqrt(shape[-1]))


def norm(*shape: int, gain: float = 1.0) -> Draw:
    return normal(*shape, mean=gain, spread=0.1 * gain)


def bias(*shape: int) -> Draw:
    return normal(*shape, spread=0.1)


def decay(*shape: int) -> Draw:
    """What a state loses per step of time: from next to nothing to nearly all, never growing."""
    return lambda random: -np.exp(random.uniform(-3.0, 0.5, shape))


def embedding(width: int = WIDTH, spread: float = 1.0, tokens: int = len(TOKENS)) -> Draw:
    return normal(tokens, width, spread=spread)


def voice(tokens: int = len(TOKENS)) -> Draw:
    """The output matrix: it hardly ever says a token that is not in SPOKEN."""
    volume = np.full((tokens, 1), 0.1)
    volume[SPOKEN] = 1.0
    return lambda random: volume * matrix(tokens, WIDTH, gain=2.0)(random)


def slow_rope() -> Draw:
    """Divisors of the frequencies of a rope that turns a quarter of a head of 2 x HEAD."""
    return lambda _: np.repeat([1.0, 1e30], [HEAD // 4, HEAD - HEAD // 4])


# --- parts of a block ---


def attention(
    head: int = HEAD, *, normed: bool = False, biased: bool = False, gated: bool = False, sharp: float = SHARP
) -> Tensors:
    """Grouped attention: norms or biases of queries and keys, a gate beside each query."""
    queries, keys = HEADS * head, KEY_HEADS * head
    tensors = {
        "attn_norm.weight": norm(WIDTH),
        "attn_q.weight": matrix(2 * queries if gated else queries, WIDTH, gain=1.0 if normed else sharp),
        "attn_k.weight": matrix(keys, WIDTH),
        "attn_v.weight": matrix(keys, WIDTH),
        "attn_output.weight": matrix(WIDTH, queries, gain=LOUD),
    }
    if normed:
        tensors |= {"attn_q_norm.weight": norm(head, gain=sharp), "attn_k_norm.weight": norm(head)}
    if biased:
        tensors |= {"attn_q.bias": bias(queries), "attn_k.bias": bias(keys), "attn_v.bias": bias(keys)}
    return tensors


def fused_attention() -> Tensors:
    return {
        "attn_norm.weight": norm(WIDTH),
        "attn_qkv.weight": matrix((HEADS + 2 * KEY_HEADS) * HEAD, WIDTH, gain=math.sqrt(SHARP)),
        "attn_output.weight": matrix(WIDTH, HEADS * HEAD),
    }


def latent_attention() -> Tensors:
    """Attention whose cache is one latent vector and one turned key; all parts of size HEAD."""
    return {
        "attn_norm.weight": norm(WIDTH),
        "attn_q_a.weight": matrix(HEAD, WIDTH),
        "attn_q_a_norm.weight": norm(HEAD),
        "attn_q_b.weight": matrix(HEADS * 2 * HEAD, HEAD, gain=SHARP),
        "attn_kv_a_mqa.weight": matrix(2 * HEAD, WIDTH),
        "attn_kv_a_norm.weight": norm(HEAD),
        "attn_k_b.weight": matrix(HEADS, HEAD, HEAD),
        "attn_v_b.weight": matrix(HEADS, HEAD, HEAD),
        "attn_output.weight": matrix(WIDTH, HEADS * HEAD, gain=LOUD),
    }


def mamba(inner: int = 2 * WIDTH, heads: int = 4, groups: int = 2, state: int = 16) -> Tensors:
    """A state space mixer of the second kind, as MAMBA has it."""
    mixed = inner + 2 * groups * state
    return {
        "attn_norm.weight": norm(WIDTH),
        "ssm_in.weight": matrix(inner + mixed + heads, WIDTH),
        "ssm_conv1d.weight": matrix(mixed, KERNEL),
        "ssm_conv1d.bias": bias(mixed),
        "ssm_dt.bias": bias(heads),
        "ssm_a": decay(heads, 1),
        "ssm_d": norm(heads, 1),
        "ssm_norm.weight": norm(groups, inner // groups),
        "ssm_out.weight": matrix(WIDTH, inner, gain=LOUD),
    }


def delta_net(heads: int = 4, groups: int = 2, state: int = 32) -> Tensors:
    """A gated delta net, as DELTA_NET has it."""
    keys, values = groups * state, heads * state
    return {
        "attn_norm.weight": norm(WIDTH),
        "attn_qkv.weight": matrix(2 * keys + values, WIDTH),
        "attn_gate.weight": matrix(values, WIDTH),
        "ssm_conv1d.weight": matrix(2 * keys + values, KERNEL),
        "ssm_dt.bias": bias(heads),
        "ssm_a": decay(heads),
        "ssm_beta.weight": matrix(heads, WIDTH),
        "ssm_alpha.weight": matrix(heads, WIDTH),
        "ssm_norm.weight": norm(state),
        "ssm_out.weight": matrix(WIDTH, values, gain=LOUD),
    }


def prediction() -> Tensors:
    """What a block has in addition that predicts the token after the next."""
    return {
        "nextn.eh_proj.weight": matrix(WIDTH, 2 * WIDTH),
        "nextn.enorm.weight": norm(WIDTH),
        "nextn.hnorm.weight": norm(WIDTH),
    }


def eagle() -> Tensors:
    """The one block of an EAGLE-3 head: attention over a token's embedding beside a hidden row."""
    sharp = math.sqrt(SHARP)
    return (
        attention()
        | feed_forward()
        | {
            "attn_norm_2.weight": norm(WIDTH),
            "attn_q.weight": matrix(HEADS * HEAD, 2 * WIDTH, gain=sharp),
            "attn_k.weight": matrix(KEY_HEADS * HEAD, 2 * WIDTH, gain=sharp),
            "attn_v.weight": matrix(KEY_HEADS * HEAD, 2 * WIDTH),
        }
    )


def short_convolution() -> Tensors:
    return {
        "attn_norm.weight": norm(WIDTH),
        "shortconv.in_proj.weight": matrix(3 * WIDTH, WIDTH),
        "shortconv.conv.weight": matrix(WIDTH, KERNEL),
        "shortconv.out_proj.weight": matrix(WIDTH, WIDTH, gain=LOUD),
    }


def feed_forward(before: str = "ffn_norm") -> Tensors:
    """A gated feed-forward layer after the norm called `before`."""
    return {
        f"{before}.weight": norm(WIDTH),
        "ffn_gate.weight": matrix(HIDDEN, WIDTH),
        "ffn_up.weight": matrix(HIDDEN, WIDTH),
        "ffn_down.weight": matrix(WIDTH, HIDDEN),
    }


def encoder() -> Tensors:
    """A block that reads both ways, with a norm after each part."""
    return {
        **{f"attn_{name}.weight": matrix(WIDTH, WIDTH, gain=SHARP if name == "q" else 1.0) for name in "qkv"},
        **{f"attn_{name}.bias": bias(WIDTH) for name in "qkv"},
        "attn_output.weight": matrix(WIDTH, WIDTH, gain=LOUD),
        "attn_output.bias": bias(WIDTH),
        "attn_output_norm.weight": norm(WIDTH),
        "attn_output_norm.bias": bias(WIDTH),
        "ffn_up.weight": matrix(HIDDEN, WIDTH),
        "ffn_up.bias": bias(HIDDEN),
        "ffn_down.weight": matrix(WIDTH, HIDDEN),
        "ffn_down.bias": bias(WIDTH),
        "layer_output_norm.weight": norm(WIDTH),
        "layer_output_norm.bias": bias(WIDTH),
    }


def encoder_ends() -> Tensors:
    return {
        "token_embd.weight": embedding(),
        "token_types.weight": normal(1, WIDTH, spread=0.1),
        "position_embd.weight": normal(ENCODER_CONTEXT, WIDTH, spread=0.3),
        "token_embd_norm.weight": norm(WIDTH),
        "token_embd_norm.bias": bias(WIDTH),
    }


def fused_feed_forward() -> Tensors:
    return {
        "ffn_norm.weight": norm(WIDTH),
        "ffn_up.weight": matrix(2 * HIDDEN, WIDTH),
        "ffn_down.weight": matrix(WIDTH, HIDDEN),
    }


def experts(before: str = "ffn_norm", *, shared: bool = False, balanced: bool = False, biased: bool = False) -> Tensors:
    """Experts after the norm called `before`: one that all tokens share, a balance, biases."""
    tensors = {
        f"{before}.weight": norm(WIDTH),
        "ffn_gate_inp.weight": matrix(EXPERTS, WIDTH, gain=2.0),
        "ffn_gate_exps.weight": matrix(EXPERTS, EXPERT, WIDTH),
        "ffn_up_exps.weight": matrix(EXPERTS, EXPERT, WIDTH),
        "ffn_down_exps.weight": matrix(EXPERTS, WIDTH, EXPERT),
    }
    if shared:
        tensors |= {
            "ffn_gate_shexp.weight": matrix(EXPERT, WIDTH),
            "ffn_up_shexp.weight": matrix(EXPERT, WIDTH),
            "ffn_down_shexp.weight": matrix(WIDTH, EXPERT),
        }
    if balanced:
        tensors |= {"exp_probs_b.bias": bias(EXPERTS)}
    if biased:
        tensors |= {
            "ffn_gate_inp.bias": bias(EXPERTS),
            "ffn_gate_exps.bias": bias(EXPERTS, EXPERT),
            "ffn_up_exps.bias": bias(EXPERTS, EXPERT),
            "ffn_down_exps.bias": bias(EXPERTS, WIDTH),
        }
    return tensors


def squared_feed_forward() -> Tensors:
    """A block by itself, without a gate."""
    return {
        "attn_norm.weight": norm(WIDTH),
        "ffn_up.weight": matrix(HIDDEN, WIDTH),
        "ffn_down.weight": matrix(WIDTH, HIDDEN),
    }


def norms_after() -> Tensors:
    return {"post_attention_norm.weight": norm(WIDTH), "post_ffw_norm.weight": norm(WIDTH)}


def sinks() -> Tensors:
    return {"attn_sinks.weight": bias(HEADS), "attn_output.bias": bias(WIDTH)}


def layer_input(size: int) -> Tensors:
    """Where a block takes its own embedding of the token."""
    return {
        "inp_gate.weight": matrix(size, WIDTH),
        "proj.weight": matrix(WIDTH, size),
        "post_norm.weight": norm(WIDTH),
        "layer_output_scale.weight": norm(1),
    }


# --- keys ---

ATTENTION: dict[str, Value] = {
    "attention.head_count": HEADS,
    "attention.head_count_kv": KEY_HEADS,
    "attention.key_length": HEAD,
    "attention.value_length": HEAD,
    "rope.dimension_count": HEAD,
    "feed_forward_length": HIDDEN,
}
ENCODER: dict[str, Value] = ATTENTION | {
    "context_length": ENCODER_CONTEXT,
    "attention.head_count_kv": HEADS,
    "attention.causal": False,
    "attention.layer_norm_epsilon": 1e-5,
}
MIXTURE: dict[str, Value] = {
    "expert_count": EXPERTS,
    "expert_used_count": EXPERTS_USED,
    "expert_feed_forward_length": EXPERT,
}
# One expert for all, the others chosen by a sigmoid with a balance, all but the first block.
SIGMOID_MIXTURE: dict[str, Value] = MIXTURE | {
    "expert_shared_count": 1,
    "expert_gating_func": 2,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
}
MAMBA: dict[str, Value] = {
    "ssm.conv_kernel": KERNEL,
    "ssm.inner_size": 2 * WIDTH,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
DELTA_NET: dict[str, Value] = MAMBA | {"ssm.inner_size": 4 * 32, "ssm.state_size": 32}
SLIDING: dict[str, Value] = {"attention.sliding_window": WINDOW}
PREDICTING: dict[str, Value] = {"nextn_predict_layers": 1}


# --- architectures ---

STEP = Model(
    ATTENTION
    | SLIDING
    | {
        "nextn_predict_layers": 2,
        "attention.sliding_window_pattern": [True, False, True, True, False],
        "rope.dimension_count_swa": HEAD,
        "rope.freq_base_swa": 1e4,
        "expert_feed_forward_length": EXPERT,
    },
    [attention(normed=True) | feed_forward()] * 3 + [attention(normed=True) | feed_forward() | prediction()] * 2,
    architecture="step35",
)

ZOO = {
    "llama": Model(ATTENTION, [attention() | feed_forward()] * 3),
    "qwen2": Model(ATTENTION, [attention(biased=True) | feed_forward()] * 3),
    "qwen3": Model(ATTENTION, [attention(normed=True) | feed_forward()] * 3),
    "qwen3moe": Model(ATTENTION | MIXTURE, [attention(normed=True) | experts()] * 3),
    "qwen35": Model(
        ATTENTION
        | DELTA_NET
        | {
            "full_attention_interval": 3,
            "rope.dimension_count": HEAD // 2,
            "rope.dimension_sections": [3, 3, 2, 0],
        },
        [
            delta_net() | feed_forward("post_attention_norm"),
            delta_net() | feed_forward("post_attention_norm"),
            attention(normed=True, gated=True) | feed_forward("post_attention_norm"),
        ],
    ),
    "gemma3": Model(
        ATTENTION | SLIDING | {"attention.sliding_window_pattern": [True, False, True]},
        [attention(normed=True) | norms_after() | feed_forward()] * 3,
        {"token_embd.weight": embedding(spread=1 / math.sqrt(WIDTH))},  # It multiplies by the root.
    ),
    # Heads twice as large where the window does not slide; the last two blocks use the cache of the first two.
    "gemma4": Model(
        ATTENTION
        | SLIDING
        | {
            "attention.sliding_window_pattern": [True, False, True, False],
            "attention.shared_kv_layers": 2,
            "attention.key_length": 2 * HEAD,
            "attention.value_length": 2 * HEAD,
            "attention.key_length_swa": HEAD,
            "attention.value_length_swa": HEAD,
            "rope.dimension_count": 2 * HEAD,
            "rope.dimension_count_swa": HEAD,
            "rope.freq_base": 1e6,
            "rope.freq_base_swa": 1e4,
            "embedding_length_per_layer_input": 16,
            "final_logit_softcapping": 30.0,
        },
        [
            attention(head, normed=True, sharp=0.5) | norms_after() | feed_forward() | layer_input(16)
            for head in (HEAD, 2 * HEAD, HEAD, 2 * HEAD)
        ],
        {
            "token_embd.weight": embedding(spread=1 / math.sqrt(WIDTH)),
            "per_layer_token_embd.weight": embedding(4 * 16, spread=1 / math.sqrt(16)),
            "per_layer_model_proj.weight": matrix(4 * 16, WIDTH),
            "per_layer_proj_norm.weight": norm(16),
            "rope_freqs.weight": slow_rope(),
        },
    ),
    # Positions beyond 512 stretch the rope and sharpen attention.
    "mistral3": Model(
        ATTENTION
        | {
            "attention.temperature_scale": 0.1,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 512,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
        },
        [attention() | feed_forward()] * 3,
    ),
    "phi3": Model(ATTENTION, [fused_attention() | fused_feed_forward()] * 3),
    "gpt-oss": Model(
        ATTENTION | MIXTURE | SLIDING,
        [attention(biased=True) | sinks() | experts("post_attention_norm", biased=True)] * 3,
    ),
    "glm4moe": Model(
        ATTENTION | SIGMOID_MIXTURE | {"rope.dimension_count": HEAD // 2},
        [attention(biased=True) | feed_forward("post_attention_norm")]
        + [attention(biased=True) | experts("post_attention_norm", shared=True, balanced=True)] * 2,
    ),
    "deepseek2": Model(
        ATTENTION
        | SIGMOID_MIXTURE
        | {
            "attention.q_lora_rank": HEAD,
            "attention.kv_lora_rank": HEAD,
            "attention.key_length": 2 * HEAD,
            "attention.key_length_mla": 2 * HEAD,
            "attention.value_length_mla": HEAD,
        },
        [latent_attention() | feed_forward()] + [latent_attention() | experts(shared=True, balanced=True)] * 2,
    ),
    # A block with no heads for keys is recurrent, here and in the two below; attention without a rope.
    "granitehybrid": Model(
        ATTENTION
        | MIXTURE
        | MAMBA
        | {
            "attention.head_count_kv": [0, KEY_HEADS, 0],
            "feed_forward_length": EXPERT,
            "expert_shared_feed_forward_length": EXPERT,
            "rope.scaling.finetuned": False,
            "attention.scale": 0.2,
            "embedding_scale": 2.0,
            "residual_scale": 0.5,
            "logit_scale": 1.0,
        },
        [mixer | experts(shared=True) for mixer in (mamba(), attention(), mamba())],
        {"token_embd.weight": embedding(spread=0.5)},
    ),
    "nemotron_h": Model(
        ATTENTION
        | MAMBA
        | {
            "attention.head_count_kv": [0, KEY_HEADS, 0, 0],
            "attention.layer_norm_epsilon": 1e-5,
            "feed_forward_length": [0, 0, 0, HIDDEN],
        },
        [mamba(), attention(), mamba(), squared_feed_forward()],
    ),
    "lfm2": Model(
        ATTENTION | {"attention.head_count_kv": [0, KEY_HEADS, 0], "shortconv.l_cache": KERNEL},
        [mixer | feed_forward() for mixer in (short_convolution(), attention(normed=True), short_convolution())],
        final_norm="token_embd_norm",  # It normalises the output all the same.
    ),
    "mamba2": Model(MAMBA, [mamba()] * 3),
    # One that can be asked to fill a gap.
    "llama-infill": Model(
        ATTENTION,
        [attention() | feed_forward()] * 3,
        {
            "token_embd.weight": embedding(tokens=len(TOKENS) + len(INFILL)),
            "output.weight": voice(len(TOKENS) + len(INFILL)),
        },
        architecture="llama",
        control=INFILL,
    ),
    # Two with a block of their own that drafts, which is the last; one can be cut, and one is a hybrid.
    "glm4moe-mtp": Model(
        ATTENTION | SIGMOID_MIXTURE | PREDICTING | {"rope.dimension_count": HEAD // 2},
        [attention(biased=True) | feed_forward("post_attention_norm")]
        + [attention(biased=True) | experts("post_attention_norm", shared=True, balanced=True)] * 2
        + [attention(biased=True) | experts("post_attention_norm", shared=True, balanced=True) | prediction()],
        architecture="glm4moe",
    ),
    "qwen35-mtp": Model(
        ATTENTION
        | DELTA_NET
        | PREDICTING
        | {
            "full_attention_interval": 3,
            "rope.dimension_count": HEAD // 2,
            "rope.dimension_sections": [3, 3, 2, 0],
        },
        [
            delta_net() | feed_forward("post_attention_norm"),
            delta_net() | feed_forward("post_attention_norm"),
            attention(normed=True, gated=True) | feed_forward("post_attention_norm"),
            attention(normed=True, gated=True) | feed_forward("post_attention_norm") | prediction(),
        ],
        architecture="qwen35",
    ),
    # Two blocks of its own that draft, which take turns; and a file with nothing but such blocks.
    "step35-mtp": STEP,
    "step35-head": STEP._replace(blocks=[{}] * 3 + STEP.blocks[3:]),
    # Two draft heads for "llama". One drafts a block of tokens in one pass, and says with the target's output matrix.
    "llama-dflash": Model(
        ATTENTION | {"target_layers": [0, 1, 2], "block_size": 8},
        [attention(normed=True) | feed_forward()] * 2,
        {
            "fc.weight": matrix(WIDTH, 3 * WIDTH),
            "enc.output_norm.weight": norm(WIDTH),
            "output_norm.weight": norm(WIDTH),
        },
        architecture="dflash",
        shares=False,
    ),
    # The other reads what goes into all three blocks, and knows two tokens in three.
    "llama-eagle3": Model(
        ATTENTION | {"target_layers": [0, 1, 2], "target_hidden_size": WIDTH, "rope.dimension_count": HEAD},
        [eagle()],
        {
            "fc.weight": matrix(WIDTH, 3 * WIDTH),
            "output_norm.weight": norm(WIDTH),
            "output.weight": matrix(len(KNOWN_TO_HEAD), WIDTH, gain=4.0),
            "d2t": lambda _: np.array(KNOWN_TO_HEAD, dtype=np.int64),
        },
        architecture="eagle3",
        shares=False,
    ),
}


# Two encoders, which generate no text: one embeds texts, one scores a document for a query.
ZOO |= {
    "bert": Model(ENCODER | {"pooling_type": 2}, [encoder()] * 3, encoder_ends(), shares=False),
    "bert-reranker": Model(
        ENCODER,
        [encoder()] * 3,
        encoder_ends()
        | {
            "cls.weight": matrix(WIDTH, WIDTH),
            "cls.bias": bias(WIDTH),
            "cls.output.weight": matrix(1, WIDTH),
            "cls.output.bias": bias(1),
        },
        architecture="bert",
        shares=False,
        tokenizer={
            "tokenizer.ggml.add_bos_token": True,
            "tokenizer.ggml.add_eos_token": True,
            "tokenizer.ggml.add_sep_token": True,
            gguf.Keys.Tokenizer.SEP_ID: TOKENS.index("<|im_end|>"),
        },
    ),
}


# --- files ---


def make(name: str, out: Path) -> None:
    """Write the model called `name` to `out`, which appears when it is complete."""
    model = ZOO[name]
    part = out.with_name(out.name + ".part")
    architecture = model.architecture or name
    writer = gguf.GGUFWriter(part, architecture)
    keys: dict[str, Value] = {
        "context_length": CONTEXT,
        "embedding_length": WIDTH,
        "block_count": len(model.blocks),
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    # The same name for all: where it says phi3, llama.cpp expects Phi's control tokens.
    add(writer, {"general.name": "zoo", "general.file_type": int(gguf.LlamaFileType.ALL_F32)})
    add(writer, {f"{architecture}.{key}": value for key, value in (keys | model.keys).items()})
    add(writer, tokenizer(model.control) | model.tokenizer)
    random = np.random.default_rng([*name.encode()])
    for tensor, draw in tensors(model).items():
        drawn = draw(random)
        writer.add_tensor(tensor, drawn if drawn.dtype == np.int64 else drawn.astype(np.float32))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def add(writer: gguf.GGUFWriter, keys: dict[str, Value]) -> None:
    for key, value in keys.items():
        # llama.cpp expects whole numbers to be unsigned, which the package does not guess.
        whole = isinstance(value, int) and not isinstance(value, bool)
        kind = gguf.GGUFValueType.UINT32 if whole else gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, kind)


def tensors(model: Model) -> Tensors:
    """All tensors of a model by their full names."""
    named: Tensors = {}
    if model.shares:
        named |= {
            "token_embd.weight": embedding(),
            f"{model.final_norm}.weight": norm(WIDTH),
            "output.weight": voice(),
        }
    for index, block in enumerate(model.blocks):
        named |= {f"blk.{index}.{name}": draw for name, draw in block.items()}
    return named | model.rest


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=default_folder() / "zoo", help="default: %(default)s")
    parser.add_argument("--only", choices=ZOO, metavar="NAME", help=f"one of {', '.join(ZOO)}")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for animal in [arguments.only] if arguments.only else ZOO:
        make(animal, arguments.out / f"{animal}.gguf")
