"""JSON schemas of the bodies, from the description of the interface and not from the program.

An object is open unless `closed` makes it.
"""

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
OBJECT = {"type": "object"}
URI = {"type": "string", "format": "uri"}
STRINGS = {"type": "array", "items": STRING}
COUNT = {"type": "integer", "minimum": 0}
TEXT_OR_NULL = {"type": ["string", "null"]}
AT_LEAST_ONE = {"type": "integer", "minimum": 1}


def const(value):
    return {"const": value}


def array(items):
    return {"type": "array", "items": items}


def open_object(required=None, optional=None):
    """An object with required and optional members, and any others."""
    required, optional = required or {}, optional or {}
    return {"type": "object", "required": list(required), "properties": required | optional}


def closed(required, optional=None):
    return open_object(required, optional) | {"additionalProperties": False}


MESSAGE = open_object(
    {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": {"anyOf": [STRING, array(OBJECT), {"type": "null"}]},
    },
    {"name": STRING, "tool_call_id": STRING, "tool_calls": array(OBJECT)},
)

USAGE = open_object(optional={"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT})

METADATA = open_object(
    {
        "cache_hit": BOOLEAN,
        "credits_used": {"type": "number", "minimum": 0},
        "credits_remaining": {"type": "number"},
        "owner": STRING,
    },
    {
        "cache_entry_id": TEXT_OR_NULL,
        "cache_store_status": TEXT_OR_NULL,
        "resolved_owner": TEXT_OR_NULL,
        "usage_estimated": BOOLEAN,
    },
)

MODEL = open_object(
    {"id": STRING, "object": const("model"), "owned_by": STRING},
    {
        "created": INTEGER,
        "name": STRING,
        "context_length": {"type": ["integer", "null"]},
        "cost": OBJECT,
        "pricing": {"type": ["object", "null"]},
        "output_modalities": STRINGS,
    },
)

MODEL_LIST = open_object(
    {
        "object": const("list"),
        "data": array(MODEL),
        "x_svc": open_object(optional={"owner": STRING, "credits_remaining": {"type": "number"}}),
    }
)


def completion(kind, choice):
    return open_object(
        {
            "id": STRING,
            "object": kind,
            "created": INTEGER,
            "model": STRING,
            "choices": array(choice),
            "x_svc": METADATA,
        },
        {"usage": USAGE},
    )


CHAT_CHOICE = open_object({"index": INTEGER, "message": MESSAGE}, {"finish_reason": TEXT_OR_NULL})
TEXT_CHOICE = open_object(
    {"index": INTEGER, "text": STRING},
    {"logprobs": {"type": ["object", "null"]}, "finish_reason": TEXT_OR_NULL},
)
CHAT_COMPLETION = completion(STRING, CHAT_CHOICE)
TEXT_COMPLETION = completion(const("text_completion"), TEXT_CHOICE)

PRODUCT = open_object(
    {
        "id": const("svc-pro-monthly"),
        "name": STRING,
        "price_usd": const(199),
        "billing_interval": const("month"),
        "purchase": {"type": "object", "additionalProperties": URI},
    },
    {
        "included_device_slots": AT_LEAST_ONE,
        "computer_use_tasks_per_month": AT_LEAST_ONE,
        "features": STRINGS,
    },
)

CHECKOUT_SESSION = open_object(
    {
        "id": STRING,
        "status": {"enum": ["incomplete", "completed"]},
        "ucp": open_object({"version": const("2026-04-08"), "capabilities": STRINGS}),
    },
    {"continue_url": URI, "currency": const("USD")},
)

SUBSCRIPTION = open_object(
    {"success": BOOLEAN}, {"already_active": BOOLEAN, "product": PRODUCT, "subscription": OBJECT}
)

ONBOARDING = closed(
    {
        "service": STRING,
        "status": const("self_service"),
        "login_required": BOOLEAN,
        "signup_url": URI,
        "api_keys": open_object({"self_service": BOOLEAN, "dashboard_url": URI, "documentation_url": URI}),
        "sandbox": open_object(
            {"available": BOOLEAN, "url": {"type": "string", "format": "uri-reference"}, "uses_production_api": BOOLEAN}
        ),
        "free_tier": open_object(
            {
                "available": BOOLEAN,
                "service": STRING,
                "included_devices": AT_LEAST_ONE,
                "credits_required": BOOLEAN,
                "endpoint": URI,
                "server_card": URI,
                "apk_download_url": URI,
            }
        ),
        "openapi_url": URI,
        "mcp_server_card": URI,
    }
)

PROBLEM = open_object(
    {"type": {"type": "string", "format": "uri-reference"}, "title": STRING, "status": INTEGER}, {"detail": STRING}
)

ERROR = open_object(
    {
        "error": open_object(
            {"message": {"type": "string", "minLength": 1}, "type": {"type": "string", "pattern": "^[a-z0-9_]+$"}},
            {"param": TEXT_OR_NULL, "code": TEXT_OR_NULL},
        )
    }
)
