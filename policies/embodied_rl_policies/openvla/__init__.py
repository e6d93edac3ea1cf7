"""OpenVLA (arXiv:2406.09246) and OpenVLA-OFT (arXiv:2502.19645) on plain torch and transformers' Llama layers."""
