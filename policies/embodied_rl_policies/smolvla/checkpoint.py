"""What lerobot calls our parameters in a SmolVLA checkpoint."""

VLM = "model.vlm_with_expert.vlm.model"
PLACES = {
    "vision_model": f"{VLM}.vision_model",
    "connector": f"{VLM}.connector",
    "text_model": f"{VLM}.text_model",
    "expert": "model.vlm_with_expert.lm_expert",
}


def checkpoint_key(own_name: str) -> str:
    """A name in our state dict → its key in `model.safetensors` of a lerobot SmolVLA.

    A checkpoint has keys that no network of ours reads, since they change no action: the language model's `lm_head`
    and last norm, and all of its last layer but the input norm, `k_proj` and `v_proj`.
    """
    module, _, rest = own_name.partition(".")
    return f"{PLACES.get(module, f'model.{module}')}.{rest}"
