"""π0 and π0.5, Physical Intelligence's flow policies, on transformers' PaliGemma parts."""
