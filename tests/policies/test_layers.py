"""Transformer layers against their definitions."""

import torch

from embodied_rl_policies.pocket import Attention, modulate


def test_attention_against_its_definition() -> None:
    """softmax(q k / sqrt(d)) v head by head, over the keys that may be seen."""
    torch.manual_seed(0)
    attention, tokens = Attention(16, 2), torch.randn(3, 5, 16)
    prefix, mask = torch.randn(3, 4, 32), torch.ones(3, 9, dtype=torch.bool)
    mask[1, 2:4] = False
    key_value = torch.cat([prefix, attention.key_value(tokens)], dim=1)
    heads = []
    for head in (slice(0, 8), slice(8, 16)):
        query, key, value = attention.query(tokens)[..., head], key_value[..., :16][..., head], key_value[..., 16:]
        score = torch.einsum("nqc,nkc->nqk", query, key) / 8**0.5
        weight = score.masked_fill(~mask[:, None], -torch.inf).softmax(dim=-1)
        heads.append(weight @ value[..., head])
    expected = attention.out(torch.cat(heads, dim=-1))
    assert torch.allclose(attention(tokens, key_value, mask), expected, atol=1e-5)


def test_modulation_scales_and_shifts_a_vector_of_unit_mean_square() -> None:
    """adaRMS: x / rms(x) · (1 + scale) + shift, whatever the size of x."""
    torch.manual_seed(0)
    tokens, scale, shift = 5 * torch.randn(2, 4, 32), torch.randn(2, 1, 32), torch.randn(2, 1, 32)
    normed = (modulate(tokens, scale, shift) - shift) / (1 + scale)
    assert torch.allclose(normed.square().mean(dim=-1), torch.ones(2, 4), atol=1e-3)
    assert torch.allclose(normed, tokens / tokens.square().mean(dim=-1, keepdim=True).sqrt(), atol=1e-3)
