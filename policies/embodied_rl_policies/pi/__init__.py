"""π0 and π0.5, flow policies of Physical Intelligence, built from PaliGemma parts of transformers."""
