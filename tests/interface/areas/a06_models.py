"""The list of models."""

from schemas import INTEGER, MODEL, MODEL_LIST
from statement import Area, each, equal, holds, valid
from world import CHAT, MODELS, ask

area = Area("models")


def listed(world):
    return world.get(MODELS, "owner").is_status(200).json()


@area.says("the list is JSON with object list, data and x_svc")
def _(world):
    answer = world.get(MODELS, "owner").is_status(200)
    equal(answer.media_type(), "application/json")
    valid(answer.json(), MODEL_LIST)


@area.says("every model has id, object model and owned_by")
def _(world):
    each(listed(world)["data"], lambda model: valid(model, MODEL))


@area.says("name, context_length, cost, pricing and output_modalities are of their types")
def _(world):
    names = ("name", "context_length", "cost", "pricing", "output_modalities")
    for model in listed(world)["data"]:
        valid(model, MODEL)
        equal([name for name in names if name not in model], [])


@area.says("created is an integer on every model (agreed to be always there)")
def _(world):
    each(listed(world)["data"], lambda model: valid(model["created"] if "created" in model else None, INTEGER))


@area.says("ids occur once, and each of them works in a completion")
def _(world):
    ids = [model["id"] for model in listed(world)["data"]]
    equal(len(set(ids)), len(ids))
    each(ids, lambda model: world.takes(CHAT, ask(model=model)))


@area.says("a single model is at its id, with the same members (agreed in addition)")
def _(world):
    for model in listed(world)["data"]:
        equal(world.get(f"{MODELS}/{model['id']}", "owner").is_status(200).json(), model)


@area.says("x_svc names the account and its credits")
def _(world):
    key = world.key("7.25")
    found = world.get(MODELS, key).is_status(200).json()["x_svc"]
    equal(found["credits_remaining"], 7.25)
    equal(found["owner"], world.post(CHAT, ask(), key).json()["x_svc"]["owner"])


@area.says("credits are those at the time of the request")
def _(world):
    key = world.key("7")
    used = world.post(CHAT, ask(), key).json()["x_svc"]["credits_used"]
    equal(round(world.balance(key) + used, 6), 7)


@area.says("a key that may use one model sees that model")
def _(world):
    key = world.key_of(world.owner, "--models", "demo-small")
    equal([model["id"] for model in world.get(MODELS, key).json()["data"]], ["demo-small"])


@area.says("no credential: 401")
def _(world):
    world.get(MODELS).is_status(401)


@area.says("a credential without the scope: 403")
def _(world):
    world.get(MODELS, world.token(world.api, "api:chat")).is_status(403)


@area.says("requests beyond the quota: 429")
def _(world):
    key = world.key(rate_class="probe")
    statuses = [world.get(MODELS, key).status for _ in range(5)]
    holds(statuses[0] == 200 and statuses[-1] == 429, "200 first, and 429 at the end", statuses)


@area.says("context_length and pricing are null where they are not known")
def _(world):
    (model,) = valid(world.bare.get(MODELS, "owner").is_status(200).json(), MODEL_LIST)["data"]
    equal((model["context_length"], model["pricing"]), (None, None))
