"""The request that `dev up` and the demo propose."""

import json
import shlex

import pytest

from narwhal.dev.report import curl_line


@pytest.mark.parametrize("model", ["simulated", "dev", "it's mine"])
def test_it_asks_for_the_model_of_the_fleet(model: str) -> None:
    words = shlex.split(curl_line("http://127.0.0.1:8000", model))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1])["model"] == model
