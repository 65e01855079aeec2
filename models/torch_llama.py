"""A llama of a GGUF file in PyTorch, for experiments that need gradients or hidden states; not used by Forerun itself.

Rotary embeddings are the interleaved kind, as llama.cpp stores such models, so weights need no permutation.
"""

from dataclasses import dataclass
from pathlib import Path

try:
    import gguf
    import numpy as np
    import torch
    import torch.nn.functional as F
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from torch import Tensor, nn
except ImportError as error:
    raise SystemExit(f"error: {error}; install all with: pip install torch numpy gguf tokenizers") from error

FORBIDDEN = -1e4
"""Added to the scores of positions that must not be attended to; finite in bf16 as well."""
CONTEXT = 2048


@dataclass(frozen=True)
class Shape:
    vocab: int
    width: int
    blocks: int
    feed_forward: int
    heads: int
    key_heads: int
    head: int
    rope_base: float
    epsilon: float


class Norm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return (wide * scale * self.weight.float()).to(x.dtype)


@dataclass
class Cache:
    """Keys and values of one block, by sequence, head and position."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(cls, shape: Shape, batch: int, length: int, dtype: torch.dtype) -> "Cache":
        size = batch, shape.key_heads, length, shape.head
        return cls(torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype))

    def write(self, positions: Tensor, keys: Tensor, values: Tensor) -> None:
        at = positions[:, None, :, None].expand_as(keys)
        self.keys.scatter_(2, at, keys.to(self.keys.dtype))
        self.values.scatter_(2, at, values.to(self.values.dtype))


class Block(nn.Module):
    """Attributes are named as the tensors of a GGUF file."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        width, queries, keys = shape.width, shape.heads * shape.head, shape.key_heads * shape.head
        self.attn_norm, self.ffn_norm = Norm(width, shape.epsilon), Norm(width, shape.epsilon)
        self.attn_q, self.attn_output = linear(width, queries), linear(queries, width)
        self.attn_k, self.attn_v = linear(width, keys), linear(width, keys)
        self.ffn_gate, self.ffn_up = linear(width, shape.feed_forward), linear(width, shape.feed_forward)
        self.ffn_down = linear(shape.feed_forward, width)

    def forward(self, x: Tensor, positions: Tensor, turn: tuple[Tensor, Tensor], mask: Tensor | None, cache: Cache | None) -> Tensor:
        batch, length, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, length, heads, self.shape.head).transpose(1, 2)

        normed = self.attn_norm(x)
        queries = rotate(split(self.attn_q(normed), self.shape.heads), turn)
        keys = rotate(split(self.attn_k(normed), self.shape.key_heads), turn)
        values = split(self.attn_v(normed), self.shape.key_heads)
        if cache:
            cache.write(positions, keys, values)
            seen = mask.shape[-1]
            keys, values = cache.keys[:, :, :seen].to(queries.dtype), cache.values[:, :, :seen].to(queries.dtype)
        group = self.shape.heads // self.shape.key_heads
        if length == 1:
            # The heads of a group are like several queries, which saves copies of the cache.
            queries = queries.view(batch, self.shape.key_heads, group, self.shape.head)
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask).reshape(batch, 1, -1)
        else:
            keys, values = keys.repeat_interleave(group, 1), values.repeat_interleave(group, 1)
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
            mixed = mixed.transpose(1, 2).reshape(batch, length, -1)
        x = x + self.attn_output(mixed)
        normed = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(normed)) * self.ffn_up(normed))


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = (it.to(x.dtype) for it in turn)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), -1).flatten(-2)


class Llama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blk = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.output_norm = Norm(shape.width, shape.epsilon)
        speed = shape.rope_base ** (-torch.arange(0, shape.head, 2).float() / shape.head)
        angle = torch.arange(CONTEXT).float()[:, None] * speed
        self.turns = angle.cos(), angle.sin()

    def forward(self, tokens: Tensor) -> list[Tensor]:
        """The residual stream before each block and after the last, for texts from their beginning."""
        stream = [self.embed(tokens)]
        positions = torch.arange(tokens.shape[1]).expand_as(tokens)
        for block in self.blk:
            stream.append(block(stream[-1], positions, self.turn(positions), None, None))
        return stream

    def turn(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary embedding."""
        return self.turns[0][positions][:, None], self.turns[1][positions][:, None]

    @property
    def dtype(self) -> torch.dtype:
        """That of the blocks. Embeddings stay in f32: in bf16, logits of 20 would be off by up to 0.06."""
        return self.blk[0].attn_q.weight.dtype

    def embed(self, tokens: Tensor) -> Tensor:
        return self.token_embd(tokens).to(self.dtype)

    def logits(self, last: Tensor) -> Tensor:
        """Rows from the stream after the last block; input and output embeddings are the same here."""
        with torch.autocast("cpu", enabled=False):
            return F.linear(self.output_norm(last.float()), self.token_embd.weight)


def load(path: Path) -> tuple[Llama, Tokenizer]:
    """The model in f32, without gradients, and its tokenizer."""
    reader = gguf.GGUFReader(path)

    def key(name: str) -> int | float:
        return reader.fields[f"llama.{name}"].contents()

    shape = Shape(
        vocab=key("vocab_size"),
        width=key("embedding_length"),
        blocks=key("block_count"),
        feed_forward=key("feed_forward_length"),
        heads=key("attention.head_count"),
        key_heads=key("attention.head_count_kv"),
        head=key("rope.dimension_count"),
        rope_base=key("rope.freq_base"),
        epsilon=key("attention.layer_norm_rms_epsilon"),
    )
    model = Llama(shape)
    tensors = {it.name: np.array(gguf.dequantize(it.data, it.tensor_type)) for it in reader.tensors}
    model.load_state_dict({name: torch.from_numpy(value).float() for name, value in tensors.items()})
    return model.requires_grad_(False), tokenizer(reader)


def tokenizer(reader: gguf.GGUFReader) -> Tokenizer:
    """That of SmolLM2: byte pairs after splitting off every digit."""
    tokens, kinds, merges = (reader.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type", "merges"))
    pairs = [tuple(merge.split(" ")) for merge in merges]
    made = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    made.decoder = decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    made.add_special_tokens([AddedToken(token, special=True) for token, kind in zip(tokens, kinds) if kind == control])
    return made


@torch.no_grad()
def sample(model: Llama, prompts: list[list[int]], most: int, end: int, seed: int) -> list[list[int]]:
    """Continues each prompt at temperature 1 until `end` or for `most` tokens; returns prompts with continuations.

    The batch stops when fewer than a quarter of its sequences go on: those would cost as much as all.
    """
    chance = torch.Generator().manual_seed(seed)
    dtype = model.dtype
    longest = max(map(len, prompts))
    pads = torch.tensor([longest - len(prompt) for prompt in prompts])
    tokens = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    caches = [Cache.empty(model.shape, len(prompts), longest + most, dtype) for _ in model.blk]
    cells = torch.arange(longest + most)
    # Sequences are aligned at their ends, so cells and positions differ by the padding.
    padding = torch.where(cells[None] < pads[:, None], FORBIDDEN, 0.0)[:, None, None].to(dtype)
    causal = torch.full((longest, longest), FORBIDDEN, dtype=dtype).triu(1)

    def run(tokens: Tensor, at: Tensor, mask: Tensor) -> Tensor:
        turn = model.turn((at[None] - pads[:, None]).clamp(min=0))
        x = model.embed(tokens)
        for block, cache in zip(model.blk, caches):
            x = block(x, at.expand(len(prompts), -1), turn, mask, cache)
        return model.logits(x[:, -1])

    row = run(tokens, cells[:longest], padding[..., :longest] + causal)
    texts, going = [list(prompt) for prompt in prompts], [True] * len(prompts)
    for cell in range(longest, longest + most):
        summed = row.softmax(-1).cumsum(-1)
        drawn = torch.rand(len(prompts), 1, generator=chance) * summed[:, -1:]
        next_tokens = torch.searchsorted(summed, drawn).clamp(max=model.shape.vocab - 1)
        for index, token in enumerate(next_tokens[:, 0].tolist()):
            if going[index]:
                texts[index].append(token)
                going[index] = token != end
        if 4 * sum(going) < len(prompts) or cell == longest + most - 1:
            break
        row = run(next_tokens, cells[cell : cell + 1], padding[..., : cell + 1])
    return texts
