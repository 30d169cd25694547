-- A metering gateway as it is commonly written in Lua: the key by its digest, a quota per account and minute with its
-- headers, a look at the request's JSON, and the tokens that the answer reports. Less than tollgate does (nothing is
-- held, nothing is durable, no balance), so it is a yardstick and not an equal.

local cjson = require "cjson.safe"
local ffi = require "ffi"

-- nginx is linked with OpenSSL, so the symbol is there.
ffi.cdef [[ unsigned char *SHA256(const unsigned char *d, size_t n, unsigned char *md); ]]
local digest = ffi.new("unsigned char[32]")

local keys, quota, used = ngx.shared.keys, ngx.shared.quota, ngx.shared.used
local LIMIT, WINDOW_SECS = 1000000000, 60

local gateway = {}

local function sha256(text)
    ffi.C.SHA256(text, #text, digest)
    return ffi.string(digest, 32)
end

local function refuse(status, kind, code, message)
    ngx.status = status
    ngx.header["Content-Type"] = "application/json"
    ngx.say(cjson.encode { error = { message = message, type = kind, param = cjson.null, code = code } })
    return ngx.exit(status)
end

-- Makes `key` known, and `others` keys besides that nobody uses.
function gateway.start(key, others)
    keys:set(sha256(key), "acct_bench")
    for number = 1, others do
        keys:set(sha256("sk-nobody-" .. number), "acct_" .. number)
    end
end

function gateway.access()
    local header = ngx.var.http_authorization
    local key = header and string.match(header, "^Bearer (.+)$")
    if not key then
        return refuse(401, "authentication_error", "missing_credential", "Send an API key.")
    end
    local account = keys:get(sha256(key))
    if not account then
        return refuse(401, "authentication_error", "invalid_credential", "This API key is not known.")
    end

    local now = ngx.time()
    local window = now - now % WINDOW_SECS
    local count = quota:incr(account .. window, 1, 0, WINDOW_SECS * 2)
    if count > LIMIT then
        return refuse(429, "rate_limit_error", "rate_limit_exceeded", "Too many requests.")
    end

    ngx.req.read_body()
    local request = cjson.decode(ngx.req.get_body_data() or "")
    if type(request) ~= "table" or type(request.messages) ~= "table" or #request.messages == 0 then
        return refuse(400, "invalid_request_error", "invalid_json", "The body needs messages.")
    end
    local context = ngx.ctx
    context.account, context.left, context.reset = account, LIMIT - count, window + WINDOW_SECS - now
    context.stream = request.stream == true
    context.rest = ""
end

function gateway.header_filter()
    local context = ngx.ctx
    if context.account then
        ngx.header["RateLimit-Policy"] = '"default";q=' .. LIMIT .. ";w=" .. WINDOW_SECS
        ngx.header["RateLimit"] = '"default";r=' .. context.left .. ";t=" .. context.reset
        ngx.header["X-Request-Id"] = ngx.var.request_id
    end
end

local function note_usage(context, answer)
    if type(answer) == "table" and type(answer.usage) == "table" then
        context.tokens = answer.usage.total_tokens
    end
end

function gateway.body_filter()
    local context = ngx.ctx
    if not context.account then
        return
    end
    local rest = context.rest .. (ngx.arg[1] or "")
    if context.stream then
        while true do
            local from, to = string.find(rest, "\n\n", 1, true)
            if not from then
                break
            end
            local data = string.sub(rest, 7, from - 1)
            rest = string.sub(rest, to + 1)
            if data ~= "[DONE]" then
                note_usage(context, cjson.decode(data))
            end
        end
    elseif ngx.arg[2] then
        note_usage(context, cjson.decode(rest))
    end
    context.rest = rest
end

function gateway.log()
    local context = ngx.ctx
    if context.tokens then
        used:incr(context.account, context.tokens, 0)
    end
end

return gateway
