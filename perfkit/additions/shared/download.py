"""A link with which a reader saves a text, with no server and no network."""

import base64


def download(content: str, name: str) -> str:
    """A link that saves a text as a file of this name."""
    data = base64.b64encode(content.encode()).decode()
    return f'<a class="pk-download" download="{name}" href="data:;base64,{data}">Save {name}</a>'
