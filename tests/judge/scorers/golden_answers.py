"""Chat completions as servers write them, constructed after their own code; what differs is said at each.

The question was one of two labels, "yes" with a probability of 0.8 and "no" with 0.1, among 20 tokens.
"""

import math
from typing import Any

USAGE = {"prompt_tokens": 311, "total_tokens": 312, "completion_tokens": 1}
TOLD = {"yes": 0.55, " yes": 0.2, "Yes": 0.05, "No": 0.07, "no": 0.03, "I": 0.05, "The": 0.03}
DIGITS = {"7": 0.75, "8": 0.25}


def make_top(told: dict[str, float]) -> list[dict[str, Any]]:
    return [
        {"token": token, "logprob": math.log(share), "bytes": list(token.encode())} for token, share in told.items()
    ]


def make_vllm(told: dict[str, float] = TOLD, **message: Any) -> dict[str, Any]:
    """vLLM (entrypoints/openai/chat_completion/protocol.py): every key is written, null or not; thoughts are
    `reasoning`; log-probabilities end at -9999; `tool_calls` is left out when empty."""
    first = next(iter(told))
    content = [{"token": first, "logprob": math.log(told[first]), "bytes": list(first.encode())}]
    return {
        "id": "chatcmpl-9f1c", "object": "chat.completion", "created": 1_790_000_000, "model": "judge",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": first, "refusal": None, "annotations": None, "audio": None,
                        "function_call": None, "reasoning": None} | message,
            "logprobs": {"content": [content[0] | {"top_logprobs": [
                *make_top(told), {"token": "\ufffd", "logprob": -9999.0, "bytes": [239, 191, 189]}
            ]}]},
            "finish_reason": "length", "stop_reason": None, "token_ids": None, "routed_experts": None,
        }],
        "service_tier": None, "system_fingerprint": "vllm-0.20", "usage": USAGE | {"prompt_tokens_details": None},
        "prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None, "kv_transfer_params": None,
        "ec_transfer_params": None, "metrics": None,
    }  # fmt: skip


def make_sglang(told: dict[str, float] = TOLD, **message: Any) -> dict[str, Any]:
    """SGLang (srt/entrypoints/openai/protocol.py): empty text is null; thoughts are `reasoning_content`; `matched_stop`
    and `metadata` stand beside; of tokens with the same text one is told."""
    first = next(iter(told))
    content = {"token": first, "bytes": list(first.encode()), "logprob": math.log(told[first])}
    return {
        "id": "b2f0", "object": "chat.completion", "created": 1_790_000_000, "model": "judge",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": first, "reasoning_content": None, "tool_calls": None} | message,
            "logprobs": {"content": [content | {"top_logprobs": make_top(told)}]},
            "finish_reason": "length", "matched_stop": None,
        }],
        "usage": USAGE | {"prompt_tokens_details": None, "reasoning_tokens": 0},
        "metadata": {"weight_version": "default"},
    }  # fmt: skip


def make_transformers(text: str | None = "yes", **message: Any) -> dict[str, Any]:
    """`transformers serve` 5.23 (cli/serving/chat_completion.py): it warns of `logprobs` on its own console, ignores
    it, and leaves out whatever is null, `content` and `usage` included."""
    said = {"role": "assistant"} | ({} if text is None else {"content": text}) | message
    return {
        "id": "req-1", "object": "chat.completion", "created": 1_790_000_000, "model": "judge@main",
        "choices": [{"index": 0, "message": said, "finish_reason": "stop"}],
    }  # fmt: skip


def make_ray(told: dict[str, float] = TOLD, **message: Any) -> dict[str, Any]:
    """Ray Serve LLM (serve/core/ingress/ingress.py) writes out the object of its engine, here vLLM's."""
    return make_vllm(told, **message) | {"id": "chatcmpl-0c2e9a"}


REFUSALS = {
    "vllm": (400, {"error": {"message": "Requested sample logprobs of 20, which is greater than max allowed: 5",
                             "type": "BadRequestError", "param": "top_logprobs", "code": 400}}),
    "sglang": (400, {"object": "error", "message": "image is not supported by this model", "type": "BadRequest",
                     "param": None, "code": 400}),
    "transformers": (422, {"detail": "Unexpected fields in the request: {'uuid'}"}),
    "ray": (404, {"error": {"message": "Could not find model with id judge-2", "type": "InvalidModel",
                            "param": None, "code": 404}}),
}  # fmt: skip
"""What they say when they refuse: (status, body)."""
