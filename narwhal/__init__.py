"""Narwhal: serve LLMs with prefill and decode on separate engines, and move engines between the roles in seconds."""

__version__ = "0.1.0"
