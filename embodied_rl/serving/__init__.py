"""Models behind HTTP: the application, the chat protocol, the micro-batcher, and the models that can be served.

`application.py` and `listening.py` alone import starlette and uvicorn, which the extra `serve` brings.
"""
