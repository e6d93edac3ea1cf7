"""GR00T N1.7 on plain torch and transformers' Qwen3-VL modules; reads and writes NVIDIA's and lerobot's checkpoints."""
