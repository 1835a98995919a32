"""A client of two routers that the tests run beside them: `client.py STOP URL URL`, until the file STOP is there.

It streams answers through the openai package, and asks the other address after 503, or when one does not answer, as
docs/front.md says of `addresses`. Prints one JSON object: how many answers came whole, and what else happened.
"""

import json
import sys
import threading
from collections import Counter
from pathlib import Path

import openai

STREAMS = 3
TOKENS = 24


def ask(clients: list[openai.OpenAI], first: int) -> str:
    """One request, at the address that answered last first; what became of it."""
    said = "nobody answered"
    for turn in range(2 * len(clients)):
        client = clients[(first + turn) % len(clients)]
        try:
            stream = client.completions.create(model="tiny", prompt="x " * 200, max_tokens=TOKENS, stream=True)
            chunks = [choice for chunk in stream for choice in chunk.choices]
        except openai.InternalServerError as error:
            if error.status_code != 503:
                return f"status {error.status_code}: {error}"
            said = str(error)
        except openai.APIConnectionError as error:
            said = f"no connection: {error.__cause__}"
        except openai.OpenAIError as error:
            return f"{type(error).__name__}: {error}"
        else:
            return "whole" if chunks and chunks[-1].finish_reason == "length" else "cut short"
    return said


def main(stop: str, *urls: str) -> int:
    outcomes: Counter[str] = Counter()

    def work(number: int) -> None:
        clients = [openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120) for url in urls]
        while not Path(stop).exists():
            outcomes[ask(clients, number)] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
