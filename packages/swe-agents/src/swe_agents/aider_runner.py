# mypy: ignore-errors
# The agent's packages exist in its bundle only.
"""Runs aider inside the sandbox, by its scripting interface: replies, messages and errors are events."""

import json

import litellm  # noqa: F401 (aider imports it late, where its variables would stay)
from aider import models
from aider.coders import Coder, base_coder
from aider.history import ChatSummary
from aider.io import InputOutput
from aider.repomap import RepoMap


def run(settings, token, prompt, emit):
    """Answer one prompt. Aider adds the files that the prompt or a reply names, and asks again."""

    def event(kind, text):
        if text.strip():
            emit(json.dumps({"type": kind, "text": text}))

    class Events(InputOutput):
        def ai_output(self, content):
            event("text", content)

        def tool_output(self, *messages, log_only=False, bold=False):
            event("info", " ".join(map(str, messages)))

        def tool_warning(self, message="", strip=True):
            event("info", str(message))

        tool_error = tool_warning

    def send(*args, **kwargs):
        """Send one LLM call. Aider shows a failure of it as a text among others."""
        try:
            yield from sent(*args, **kwargs)
        except base_coder.FinishReasonLength:
            raise
        except Exception as error:  # whatever it is, Aider goes on to raise or to show it
            event("error", str(error) or type(error).__name__)
            raise

    base_coder.RETRY_TIMEOUT = models.RETRY_TIMEOUT = settings["retry_seconds"]
    RepoMap.TAGS_CACHE_DIR = settings["cache"]  # not in the repository
    # What is known of a model is not fetched.
    models.model_info_manager.local_model_metadata[settings["model"]] = settings["metadata"]
    model = models.Model(settings["model"])
    model.extra_params = {**settings["params"], "api_key": token}
    coder = Coder.create(
        main_model=model,
        edit_format=settings["edit_format"],
        io=Events(pretty=False, yes=True, fancy_input=False),
        map_tokens=settings["map_tokens"],
        summarizer=ChatSummary(model, settings["history_tokens"]),
        auto_commits=False,
        suggest_shell_commands=False,  # nobody could confirm them
        detect_urls=False,
    )
    coder.max_reflections = settings["reflections"]
    sent, coder.send = coder.send, send
    coder.check_for_file_mentions(prompt)
    coder.run(prompt, preproc=False)  # a prompt that begins with "/" or "!" is no command
