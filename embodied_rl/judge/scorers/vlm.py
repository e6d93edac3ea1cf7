"""A scorer that asks a vision-language model behind an OpenAI-compatible server, such as vLLM, SGLang or Ray Serve LLM.

Only `/v1/models` and `/v1/chat/completions` are used. Pictures travel inside the request. What the server answers is
data: labels and numbers are read from it, and nothing else is done with it.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import httpx2

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import Address, FilePath, SecretName, Text, Trust
from embodied_rl.judge.prompts.prompt import MOST_LABELS, PROMPT_NAMES, Prompt
from embodied_rl.judge.scorers.chat_answer import add_usage, read_answer, read_usage
from embodied_rl.judge.scorers.chat_message import (
    check_lossless,
    load_prompts,
    make_grey_request,
    make_writers,
    order_frames,
)
from embodied_rl.judge.scorers.http_json import (
    AnsweredError,
    ServerScorer,
    check_url,
    explain_failure,
    is_about_probabilities,
    list_ids,
    shorten,
)
from embodied_rl.judge.scorers.shared_images import Fit, ImageEncoder

log = logging.getLogger(__name__)

WITHOUT_LIST = (404, 405, 500, 501)
"""Statuses with which servers answer that have no list of models; 500: `transformers serve` without a cache."""
PICTURE_SIZE = 224
"""Pixels of the longer side of pictures, where neither prompt nor setting says otherwise."""
LARGEST_PICTURE = 4096
"""Pixels of it, at most."""


@dataclass(frozen=True)
class VlmConfig:
    """The settings of `VlmScorer`."""

    url: Address | None = None
    """of the server, up to and with /v1, such as http://127.0.0.1:8000/v1."""
    model: Text | None = None
    """model name on the server; null takes its only model, which is then part of the identity."""
    prompt: Annotated[str, Trust.PATH, PROMPT_NAMES] = "progress_digit"
    """what is asked: a name of `embodied-rl list prompts`, or a YAML file of the same keys."""
    done_prompt: Annotated[str, Trust.PATH, PROMPT_NAMES] | None = None
    """second prompt, sent as a separate request: whether the task is done, such as done_yesno."""
    picture_size: int | None = None
    """pixels of the longer side of pictures that are sent; null: 224, or as they are where the prompt wants them so."""
    picture_fit: Fit = "keep"
    """keep: the ratio of their sides; stretch: to squares, as some models were trained."""
    views: tuple[Text, ...] = ()
    """cameras in the order of the prompt's views, if it names views; one may stand there several times. Empty takes the
    simulator's, in its order."""
    reference: FilePath | None = None
    """how the task is done, for prompts that show it: an episode's .npz file, or a folder of pictures."""
    references: int = 6
    """frames of the reference that are shown, evenly spaced."""
    least_mass: float = 0.5
    """probability that the allowed answers must have together; else the score is missing."""
    key_variable: SecretName = "OPENAI_API_KEY"
    """environment variable that holds the server's key, if it wants one."""

    def __post_init__(self) -> None:
        check_url(self.url, "http://127.0.0.1:8000/v1")
        if self.picture_size is not None and not 1 <= self.picture_size <= LARGEST_PICTURE:
            raise UserError(
                f"reward.picture_size={self.picture_size} must be within 1 … {LARGEST_PICTURE}.",
                code="value-out-of-range",
            )
        if not 0 <= self.least_mass <= 1:
            raise UserError(f"reward.least_mass={self.least_mass} must be within 0 … 1.", code="value-out-of-range")


class NoSuchModelError(ScorerError):
    """An error raised where a server does not have the model that is asked for, or several where none is named."""


class VlmScorer(ServerScorer):
    """Scorer of an OpenAI-compatible server: one request a call, or two with `done_prompt`.

    The model list is read before the first request, and again after a connection failure. An answer from another model
    than the first answer's is an invalid score. With log-probabilities, the score of a prompt with labels is their
    expectation; if the server refuses to return them, the text of the answer is parsed.
    """

    Config = VlmConfig

    def __init__(self, config: VlmConfig, spec: SimulatorSpec, transport: httpx2.AsyncBaseTransport | None = None):
        super().__init__(config.url, config.key_variable, transport)
        self._config, self._spec, self._model = config, spec, config.model
        self._prompts = load_prompts(config.prompt, config.done_prompt)
        check_lossless(self._prompts, config.picture_size is not None or config.picture_fit != "keep")
        encoder = ImageEncoder(config.picture_size or PICTURE_SIZE, config.picture_fit)
        self._writers = make_writers(self._prompts, spec, encoder, config.views, config.reference, config.references)
        self._tells_probabilities = True
        self._listed, self._listing = False, asyncio.Lock()
        self._signature = ""
        """The name of the model in the first answer that had one."""
        self._warned = False
        main, asked = self._prompts[0], " and ".join(prompt.name for prompt in self._prompts)
        seen = "" if config.reference is None else f", reference {config.reference}"
        identity = f"{config.model or 'the only model'} at {config.url}, prompt {asked}{seen}"
        self.traits = ScorerTraits(
            (main.kind,),
            identity,
            judges_done=len(self._prompts) > 1,
            frames=main.frames,
            span=main.span,
            counts_tokens=True,
        )

    async def check(self) -> None:
        """Ask the server for its models, and once about a grey picture; note whether it counts tokens.

        Raises:
            UserError: the server cannot be reached, lacks the model, or cannot answer about pictures within the range.
        """
        try:
            await self.choose_model()
            asked = [make_grey_request(prompt, self._spec) for prompt in self._prompts]
            scores = [await self._ask(place, request) for place, request in enumerate(asked)]
        except ScorerError as error:
            raise explain_failure(self._config.url, self._config.key_variable, error) from None
        self.traits = replace(self.traits, counts_tokens=all(score.tokens is not None for score in scores))
        for prompt, score in zip(self._prompts, scores, strict=True):
            if score.reason == "unreadable":
                raise UserError(
                    f"reward.url={self._config.url}: {self._model} answered {score.detail}, which the prompt "
                    f"{prompt.name} cannot read. Try reward.prompt=progress_percent, or a prompt of your own.",
                    code="answer-not-readable",
                )
            if score.reason == "range":
                raise UserError(
                    f"reward.url={self._config.url}: what {self._model} answers to the prompt {prompt.name} leaves its "
                    f"range: {score.detail}. Choose another reward.prompt; one of your own may need another scale.",
                    code="answer-out-of-range",
                )

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer one request, or raise `ScorerError`."""
        (request,) = requests
        async with self._listing:
            if not self._listed:
                try:
                    await self.choose_model()
                except NoSuchModelError as error:  # not permanent: the model may come back
                    raise ScorerError("refused", str(error)) from None
                self._listed = True
        try:
            answers = await asyncio.gather(*(self._ask(place, request) for place in range(len(self._prompts))))
        except ScorerError as error:
            if not isinstance(error, AnsweredError) or error.status == 404:
                self._listed = False
            raise
        tokens = add_usage([each.tokens for each in answers])
        score, *done = (replace(each, tokens=tokens) for each in answers)
        if not done or not score.valid:
            return [score]
        if not done[0].valid:
            return [replace(score, detail=f"whether it is done: {done[0].reason}, {done[0].detail}")]
        return [replace(score, done=done[0].value)]

    async def _ask(self, place: int, request: ScoreRequest) -> Score:
        """Return the answer to the prompt at `place`."""
        prompt, messages = self._prompts[place], self._writers[place].write(request)
        wants = self._tells_probabilities and bool(prompt.reading.labels)
        try:
            answer = await self._post(prompt, messages, wants)
        except ScorerError as error:
            if not wants or not is_about_probabilities(error) or prompt.reading.needs_probabilities:
                raise
            wants = self._tells_probabilities = False
            answer = await self._post(prompt, messages, wants)
        score = read_answer(answer, prompt.reading, self._config.least_mass, wants, order_frames(prompt, request))
        name = answer.get("model")
        signature = shorten(name.encode("utf-8", "replace")) if isinstance(name, str) else ""  # servers may name none
        self._signature = self._signature or signature
        if signature not in ("", self._signature):
            self._listed = False
            what = f"the answer is from the model {signature}, not from {self._signature}"
            if not self._warned:
                log.warning("reward.url=%s: %s. Such answers do not count.", self._config.url, what)
            self._warned = True
            score = Score.invalid("refused", what)
        return replace(score, tokens=read_usage(answer)).checked(prompt.kind)

    async def _post(self, prompt: Prompt, messages: Sequence[object], wants_probabilities: bool) -> dict[str, object]:
        logprobs = {"logprobs": True, "top_logprobs": MOST_LABELS} if wants_probabilities else {}
        body = {"model": self._model, "messages": messages, "max_tokens": prompt.max_tokens, "temperature": 0}
        return await self._server.send("POST", "chat/completions", json=body | logprobs)

    async def choose_model(self) -> str:
        """Return the name of the configured model if the server has it, or else of the only one that it has.

        `transformers serve` lists what its cache holds, fails where it has no cache, and never lists the folder that it
        serves. So a model that is not listed is asked, and counts where the answer is signed as `_is_signed` says.

        Raises:
            NoSuchModelError: the server has no such model, or several where none is configured.
            ScorerError: it does not answer.
        """
        name = self._config.model
        try:
            known = list_ids(await self._server.send("GET", "models"))
        except AnsweredError as error:
            if name is None or error.status not in WITHOUT_LIST or not await self._is_signed(name, listed=False):
                raise
            known = []
        else:
            if name is None and len(known) != 1:
                several = "several models; choose one with reward.model"
                raise _refuse(f"the server has {several if known else 'no model; name it with reward.model'}.", known)
        self._model = name or known[0]
        if known and self._model not in known:
            await self._check_unlisted(self._model, known)
        return self._model

    async def _check_unlisted(self, name: str, known: Sequence[str]) -> None:
        suggestion, said = suggest_name(name, known), ""
        try:
            if await self._is_signed(name, listed=True):
                return
        except AnsweredError as error:
            if not error.permanent:
                raise
            said = f" Asked for it, {error}"
        raise _refuse(f"the server has no model '{name}'.{suggestion}", () if suggestion else known, said)

    async def _is_signed(self, name: str, listed: bool) -> bool:
        """Send a short request to a model; return whether the answer names this model.

        `transformers serve` answers with `<model>@<revision>`. Others repeat the requested name, which proves nothing
        if they list other models.
        """
        asked = [{"role": "user", "content": [{"type": "text", "text": "?"}]}]
        body = {"model": name, "messages": asked, "max_tokens": 1, "temperature": 0}
        signature = (await self._server.send("POST", "chat/completions", json=body)).get("model")
        if not isinstance(signature, str):
            return False
        return signature.startswith(f"{name}@") or (signature == name and (not listed or "@" in name))


def _refuse(what: str, known: Sequence[str], said: str = "") -> NoSuchModelError:
    listed = f" It has: {shorten(', '.join(known).encode())}." if known else ""
    return NoSuchModelError("refused", f"{what}{listed}{said}", permanent=True)
