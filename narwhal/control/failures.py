"""What a client is told when engines fail."""

FAILURES = {
    "connection": "the engine that served this request was lost; the request may be sent again",
    "timeout": "the engine that served this request did not answer in time; the request may be sent again",
    "overload": "every engine that was tried is busy; the request may be sent again later",
    "stream": "the engine that served this request failed; the request may be sent again",
    "status": "engines fail on this request; sending it again will hardly help",
    "drained": "the engine that served this request is being stopped; the request may be sent again",
    "handoff": "the prompt's KV could not be handed over; the request may be sent again",
}
"""What a client is told, by cause of the last failure. It names no engine: clients learn nothing about the fleet."""

NO_RESUME = "the engine that served this request was lost, and another cannot go on ({}); the request may be sent again"
"""What a client is told whose stream ends though it was to go on, with the reason."""
