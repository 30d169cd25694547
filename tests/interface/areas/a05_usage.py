"""Usage, and the service's own metadata about a completion."""

from schemas import METADATA, USAGE
from statement import Area, equal, holds, one_of, valid
from world import CHAT, TEXT, ask, prompt

area = Area("usage")

for path, make in ((CHAT, ask), (TEXT, prompt)):

    @area.says(f"{path}: usage counts prompt, completion and both in integers from 0")
    def _(world, path=path, make=make):
        usage = valid(world.takes(path, make())["usage"], USAGE)
        equal(usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])

    @area.says(f"{path}: x_svc has its required members, of their types")
    def _(world, path=path, make=make):
        valid(world.takes(path, make())["x_svc"], METADATA)

    for report in ("forgotten", "negative", "words", "absurd", {"json": None}, {"json": {}}):

        @area.says(f"{path}: usage and x_svc keep their types when the provider reports {report}")
        def _(world, path=path, make=make, report=report):
            answer = world.post(path, make(cache=False, stand_in={"usage": report}), world.key("100000"))
            one_of(answer.status, (200, 502))
            if answer.status == 200:
                valid(answer.json().get("usage", {}), USAGE)
                valid(answer.json()["x_svc"], METADATA)


@area.says("cache_hit is false for a new answer and true for a stored one, and both name the same entry")
def _(world):
    body = ask()
    first, second = world.takes(CHAT, body)["x_svc"], world.takes(CHAT, body)["x_svc"]
    equal((first["cache_hit"], second["cache_hit"]), (False, True))
    holds(first["cache_entry_id"], "an entry", first)
    equal(second["cache_entry_id"], first["cache_entry_id"])


@area.says("cache_entry_id and cache_store_status are strings or null when caching is off")
def _(world):
    found = valid(world.takes(CHAT, ask(cache=False))["x_svc"], METADATA)
    equal(found["cache_entry_id"], None)


@area.says("credits_used is what the answer cost, and credits_remaining what is left after it")
def _(world):
    key = world.key("10")
    found = world.post(CHAT, ask(), key).is_status(200).json()["x_svc"]
    equal(round(found["credits_used"] + found["credits_remaining"], 6), 10)
    equal(world.balance(key), found["credits_remaining"])


@area.says("credits_used is what the listed price of the model and the usage make")
def _(world):
    answer = world.takes(CHAT, ask())
    models = world.get("/v1/models", "owner").json()["data"]
    (cost,) = [model["cost"] for model in models if model["id"] == answer["model"]]
    usage = answer["usage"]
    price = (cost["input"] * usage["prompt_tokens"] + cost["output"] * usage["completion_tokens"]) / 1_000_000
    equal(round(answer["x_svc"]["credits_used"], 6), round(price + cost["request"], 6))


@area.says("owner is the account of the credential")
def _(world):
    equal(world.takes(CHAT, ask())["x_svc"]["owner"], world.owner)


@area.says("usage_estimated says whether the provider reported usage")
def _(world):
    equal(world.takes(CHAT, ask())["x_svc"]["usage_estimated"], False)
    equal(world.takes(CHAT, ask(stand_in={"usage": "forgotten"}))["x_svc"]["usage_estimated"], True)
