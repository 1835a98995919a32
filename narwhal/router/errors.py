"""What keeps a router from serving."""


class ServeError(Exception):
    """The router cannot serve; the message says why and what to do."""
